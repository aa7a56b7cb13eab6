"""Runs a function or a script in several processes, joined by ``jax.distributed``.

    results = launch.run("my_ranks:check_exchange", processes=4, local_devices=2, timeout_s=60)
    results[3].value        # what check_exchange returned in process 3
    results[3].output       # what it printed

Every process has its own CPU devices, has initialised ``jax.distributed`` before the target is
imported, and is ended with the others at the deadline, when one of them fails, or when the caller
is interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_fabric.testing.environment import cpu_environment

_POLL_S = 0.02
_LINES_IN_REPORT = 40


@dataclasses.dataclass(frozen=True)
class RankResult:
    """How one process ended.

    Attributes:
      rank: its ``jax.process_index()``.
      exit_code: 0 for success, -N when signal N ended it, None when it had to be ended because
        another process failed or at the deadline.
      seconds: how long it ran.
      output: what it wrote to stdout and stderr; stderr only for a rank that shares the caller's
        stdout.
      value: what the function returned; None for scripts and failures.
    """

    rank: int
    exit_code: int | None
    seconds: float
    output: str
    value: Any = None

    def describe(self) -> str:
        """Returns one line that says how the process ended."""
        if self.exit_code is None:
            how = "was still running and has been ended"
        elif self.exit_code < 0:
            how = f"was ended by {signal.Signals(-self.exit_code).name}"
        elif self.exit_code:
            how = f"failed with exit code {self.exit_code}"
        else:
            how = "succeeded"
        return f"rank {self.rank} {how} after {self.seconds:.1f} s"


class LaunchError(RuntimeError):
    """A process failed, or the deadline passed.

    Attributes:
      results: of all ranks.
      first: of the rank that failed first; at the deadline, of the lowest rank that was still
        running.
    """

    def __init__(self, cause: str, first: RankResult, results: Sequence[RankResult]):
        """Builds the message from the cause, how each rank ended and the first failure's output."""
        self.first = first
        self.results = tuple(results)
        lines = first.output.rstrip().splitlines()
        left_out = len(lines) - _LINES_IN_REPORT
        shown = [f"... {left_out} lines left out"] if left_out > 0 else []
        shown += lines[-_LINES_IN_REPORT:]
        parts = [
            cause,
            *(f"  {result.describe()}" for result in results),
            f"output of rank {first.rank}:",
            *(f"  | {line}" for line in shown or ["(nothing)"]),
        ]
        super().__init__("\n".join(parts))


def run(
    target: Callable[..., Any] | str | Path,
    *arguments: Any,
    processes: int,
    local_devices: int = 1,
    timeout_s: float = 120.0,
    grace_s: float = 5.0,
    environment: Mapping[str, str] | None = None,
    share_stdout: int | None = None,
    distributed: bool = True,
    prefixes: Sequence[Sequence[str]] = (),
    coordinator: str | None = None,
) -> tuple[RankResult, ...]:
    """Runs `target` in `processes` processes with `local_devices` CPU devices each.

    Args:
      target: a function of an importable module or of a file; ``"module:function"``; or the path of
        a script (``.py``), which runs as ``__main__``.
      *arguments: for a function: anything that pickles; for a script: its command line.
      processes: how many, 1 or more.
      local_devices: CPU devices of each process.
      timeout_s: deadline for all processes together. Shortly before it, every process that still
        runs prints the stacks of its threads to its output.
      grace_s: what the other processes get to end by themselves after the first failure.
      environment: variables to set on top of the caller's.
      share_stdout: the rank that writes to the caller's stdout (a progress bar), if any.
      distributed: whether processes initialise ``jax.distributed``; False leaves that to the
        target, which finds what it needs in ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and
        ``JAX_PROCESS_ID``.
      prefixes: for each process, what comes before its command and ends in running it, without a
        process in between: ``["nsenter", "--net=/run/netns/host1"]``. None: nothing.
      coordinator: where process 0 listens for ``jax.distributed``, "10.0.0.1:1234"; default: a free
        port of 127.0.0.1.

    Returns:
      One result for each rank, all successful.

    Raises:
      LaunchError: a process failed, or the deadline passed.
      ValueError: `processes` or `local_devices` is below 1, nothing can be imported as `target`, or
        there are not as many `prefixes` as processes.
    """
    if processes < 1:
        raise ValueError(f"processes is {processes}; it must be 1 or more")
    if prefixes and len(prefixes) != processes:
        raise ValueError(f"prefixes has {len(prefixes)} entries for {processes} processes")
    child_environment = cpu_environment(local_devices, os.environ) | dict(environment or {})
    # The processes import from where the caller does, and find this package wherever it lies.
    child_environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    child_environment["PYTHONUNBUFFERED"] = "1"
    with (
        tempfile.TemporaryDirectory(prefix="jax_fabric_launch_") as folder,
        _reserved_port() as port,
    ):
        coordinator = coordinator or f"127.0.0.1:{port}"
        child_environment["JAX_COORDINATOR_ADDRESS"] = coordinator
        child_environment["JAX_NUM_PROCESSES"] = str(processes)
        call = Path(folder, "call.pickle")
        call.write_bytes(pickle.dumps((_locate(target), arguments)))
        deadline = time.monotonic() + timeout_s
        with contextlib.ExitStack() as stack:
            ranks = [
                stack.enter_context(
                    _Process(
                        rank,
                        {
                            "rank": rank,
                            "processes": processes,
                            "coordinator": coordinator if distributed else None,
                            "call": str(call),
                            "result": str(Path(folder, f"{rank}.result")),
                            "stacks_at": deadline - min(2.0, 0.1 * timeout_s),
                            "parent": os.getpid(),
                        },
                        child_environment | {"JAX_PROCESS_ID": str(rank)},
                        folder=Path(folder),
                        share_stdout=rank == share_stdout,
                        prefix=prefixes[rank] if prefixes else (),
                    )
                )
                for rank in range(processes)
            ]
            first, late = _wait(ranks, deadline, grace_s)
        results = [process.result() for process in ranks]
    if first is None:
        return tuple(results)
    how = f"some did not end within {timeout_s:g} s" if late else results[first].describe()
    raise LaunchError(f"of {processes} processes, {how}", results[first], results)


def _wait(ranks: Sequence[_Process], deadline: float, grace_s: float) -> tuple[int | None, bool]:
    """Waits for all and ends those that are late.

    Returns:
      The rank that failed first (at the deadline: the lowest one that still ran) or None, and
      whether it was the deadline.
    """
    first: int | None = None
    while running := [process for process in ranks if process.running()]:
        if first is None and (first := _first_failure(ranks)) is not None:
            deadline = min(deadline, time.monotonic() + grace_s)
        if time.monotonic() >= deadline:
            for process in running:
                process.end()
            return (running[0].rank, True) if first is None else (first, False)
        time.sleep(_POLL_S)
    return (first if first is not None else _first_failure(ranks)), False


def _first_failure(ranks: Sequence[_Process]) -> int | None:
    """Returns the rank of the process that failed first, if any."""
    failed = [process for process in ranks if not process.running() and process.process.returncode]
    return min(failed, key=lambda process: process.ended).rank if failed else None


class _Process:
    """One rank's process and the files it writes to."""

    def __init__(
        self,
        rank: int,
        specification: dict[str, Any],
        environment: Mapping[str, str],
        *,
        folder: Path,
        share_stdout: bool,
        prefix: Sequence[str],
    ):
        self.rank = rank
        self.ended = 0.0
        self._result_path = Path(specification["result"])
        self._output_path = folder / f"{rank}.output"
        self._output = ""
        self._value: Any = None
        self._was_ended = False
        self._begin = time.monotonic()
        with self._output_path.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-m",
                    "jax_fabric.testing.launch_child",
                    json.dumps(specification),
                ],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=None if share_stdout else output,
                stderr=output if share_stdout else subprocess.STDOUT,
                start_new_session=True,  # so that what it starts can be ended with it
            )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what still runs (the caller was interrupted) and reads the files."""
        if self.running():
            self.end()
        self._output = self._output_path.read_text(errors="replace")
        if self.process.returncode == 0 and self._result_path.exists():
            self._value = pickle.loads(self._result_path.read_bytes())

    def running(self) -> bool:
        """Returns whether the process has not ended; notes when it has."""
        if self.process.poll() is None:
            return True
        self.ended = self.ended or time.monotonic()
        return False

    def end(self) -> None:
        """Ends the process and all that it started."""
        self._was_ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.ended = time.monotonic()

    def result(self) -> RankResult:
        """Returns how it ended."""
        exit_code = None if self._was_ended else self.process.returncode
        seconds = self.ended - self._begin
        return RankResult(self.rank, exit_code, seconds, self._output, self._value)


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Gives a free TCP port of 127.0.0.1 that nobody else is given until the end.

    gRPC binds with SO_REUSEPORT, so the coordinator may bind it although this socket, which never
    listens, has it too; the kernel hands it out to nobody else meanwhile.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


def _locate(target: Callable[..., Any] | str | Path) -> tuple[str, str, str | None]:
    """Returns how a process finds the target: ("module" or "file", which, function or None).

    Raises:
      ValueError: it is neither a script nor a function at the top of a module.
    """
    if isinstance(target, Path) or (isinstance(target, str) and target.endswith(".py")):
        path = Path(target).resolve()
        if not path.is_file():
            raise ValueError(f"there is no script {target}")
        return "file", str(path), None
    if isinstance(target, str):
        module, colon, function = target.partition(":")
        if not (module and colon and function):
            raise ValueError(f"target is {target!r}; expected 'module:function' or a path to *.py")
        return "module", module, function
    name = target.__qualname__
    if "." in name or name == "<lambda>":
        raise ValueError(
            f"{name} is not at the top of its module, so no other process can import it"
        )
    # A file rather than a module name: test files and __main__ are not importable by name.
    path = target.__code__.co_filename
    if target.__module__ in ("__main__", None) or _is_loose_file(target.__module__, path):
        return "file", os.path.abspath(path), name
    return "module", target.__module__, name


def _is_loose_file(module: str, path: str) -> bool:
    """Returns whether no entry of sys.path leads from `module` to the file `path`."""
    relative = os.path.join(*module.split("."))
    candidates = (f"{relative}.py", os.path.join(relative, "__init__.py"))
    return not any(
        os.path.realpath(os.path.join(entry, candidate)) == os.path.realpath(path)
        for entry in sys.path
        for candidate in candidates
    )
