"""Starts the benchmark under the mpiexec of the environment that has mpi4jax."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import BinaryIO

import jax_fabric
from jax_fabric.bench.config import MoeBenchConfig
from jax_fabric.bench.rows import Row
from jax_fabric.testing.environment import cpu_environment

_PACKAGE = Path(jax_fabric.__file__).parent
_GRACE_S = 10.0
_LINES_IN_REPORT = 30


class MpiError(RuntimeError):
    """A run under mpiexec failed."""


def _environment(environments: Path | None) -> Path:
    folder = environments or _PACKAGE.parent / "benchmarks" / "peers"
    return folder.absolute() / ".venv-mpi4jax"


def available(environments: Path | None) -> bool:
    """Returns whether the environment was made."""
    binaries = _environment(environments) / "bin"
    return (binaries / "mpiexec").exists() and (binaries / "python").exists()


def run(config: MoeBenchConfig, environments: Path | None, timeout_s: float) -> list[Row]:
    """Runs `config` with one process a rank.

    Args:
      config: what to run.
      environments: folder of the environments of peers; default: that of the source tree.
      timeout_s: for everything.

    Raises:
      MpiError: there is no such environment, it failed, or it was late.
    """
    if not available(environments):
        raise MpiError(
            "there is no environment with mpi4jax: run benchmarks/peers/setup mpi4jax, or name its "
            "folder with --environments"
        )
    binaries = _environment(environments) / "bin"
    with tempfile.TemporaryDirectory(prefix="jax_fabric_bench_") as name:
        folder = Path(name)
        # This package and nothing else of the environment that it lies in.
        (folder / "jax_fabric").symlink_to(_PACKAGE)
        (folder / "config.pickle").write_bytes(pickle.dumps(config))
        command = [
            *(str(binaries / "mpiexec"), "--allow-run-as-root", "--oversubscribe"),
            # A rank has threads besides the one that MPI knows of.
            *("--bind-to", "none", "-n", str(config.processes)),
            *(str(binaries / "python"), "-m", "jax_fabric.bench.mpi_child"),
            *(str(folder), str(_free_port()), str(config.processes)),
        ]
        output = folder / "output"
        with output.open("wb") as file:
            exit_code = _run(command, _variables(config, folder, binaries), file, timeout_s)
        rows = folder / "rows.pickle"
        if exit_code or not rows.exists():
            lines = output.read_text(errors="replace").splitlines()[-_LINES_IN_REPORT:]
            how = f"did not end within {timeout_s:g} s" if exit_code is None else "failed"
            raise MpiError("\n".join([f"mpiexec {how}:", *(f"  | {line}" for line in lines)]))
        return pickle.loads(rows.read_bytes())


def _variables(config: MoeBenchConfig, folder: Path, binaries: Path) -> dict[str, str]:
    variables = cpu_environment(1, os.environ)
    variables["PYTHONPATH"] = str(folder)
    variables["PATH"] = f"{binaries}{os.pathsep}{variables.get('PATH', '')}"
    variables.pop("PYTHONHOME", None)
    variables["OMPI_MCA_btl"] = "self,sm"  # one machine: no interface is looked for
    if config.processes > len(os.sched_getaffinity(0)):
        # Else a waiting rank spins through its time slice before the one it waits for gets the
        # core.
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return variables


def _run(
    command: list[str], variables: dict[str, str], output: BinaryIO, timeout_s: float
) -> int | None:
    """Returns the exit code, or None at the deadline; leaves no process behind."""
    process = subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.terminate()  # mpiexec ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
