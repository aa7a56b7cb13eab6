"""NIXL as a contender, in an environment of its own; it is asked for one measurement at a time."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax_fabric
from jax_fabric.bench.transfer_config import TransferBenchConfig

_PACKAGE = Path(jax_fabric.__file__).parent
_PROGRAM = _PACKAGE / "bench" / "peers" / "nixl_program.py"
_EXIT_S = 5.0


class NixlError(RuntimeError):
    """NIXL failed, or did not answer in time."""


def interpreter(environments: Path | None) -> Path:
    """Python of the environment."""
    folder = environments or _PACKAGE.parent / "benchmarks" / "peers"
    return folder.absolute() / ".venv-nixl" / "bin" / "python"


def available(environments: Path | None) -> bool:
    """Returns whether the environment was made."""
    return interpreter(environments).exists()


class Nixl:
    """Two processes of NIXL. They sleep while they are not asked."""

    def __init__(self, config: TransferBenchConfig, environments: Path | None):
        """Starts both, and checks that a write arrives.

        Raises:
          NixlError: there is no such environment, or it does not work.
        """
        if not available(environments):
            raise NixlError(
                "there is no environment with NIXL: run benchmarks/peers/setup nixl, or name its "
                "folder with --environments"
            )
        self._timeout_s = 2 * config.timeout_s
        self._process = subprocess.Popen(
            [
                str(interpreter(environments)),
                *(str(_PROGRAM), str(config.memory_bytes), str(config.timeout_s)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._ask("check")

    def writes_s(self, nbytes: int, count: int) -> float:
        """Seconds for `count` writes."""
        return self._ask("writes", nbytes, count)

    def pages_s(self, nbytes: int, order: Sequence[int], count: int) -> float:
        """Seconds for `count` batches of pages."""
        return self._ask("pages", nbytes, list(order), count)

    def round_trips_s(self, nbytes: int, rounds: int) -> list[float]:
        """Seconds of each round trip."""
        return self._ask("bounce", nbytes, rounds)

    def _ask(self, *command: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command, default=int) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        ready, _, _ = select.select([self._process.stdout], [], [], self._timeout_s)
        line = self._process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self._process.kill()
        _, said = self._process.communicate()
        how = "failed" if ready else f"did not answer within {self._timeout_s:g} s"
        raise NixlError("\n".join([f"NIXL {how} ({command[0]}):", *said.splitlines()[-10:]]))

    def __enter__(self) -> Nixl:
        """The contender itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends both processes."""
        try:
            self._process.communicate(timeout=_EXIT_S)  # the end of its input ends it
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            self._process.wait()
