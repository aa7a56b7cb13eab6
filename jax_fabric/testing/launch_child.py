"""What a process of :mod:`jax_fabric.testing.launch` runs. Not for direct use."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import json
import os
import pickle
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(specification: dict[str, Any]) -> None:
    """Joins the other processes, runs the target and leaves its value behind."""
    _end_with_parent(specification["parent"])
    # Where a process hangs is what one wants to know about a deadline.
    # The clock is the machine's, so the launcher's reading of it holds here.
    remaining = specification["stacks_at"] - time.monotonic()
    faulthandler.dump_traceback_later(max(0.1, remaining), exit=False)
    kind_and_place, arguments = pickle.loads(Path(specification["call"]).read_bytes())
    if specification["coordinator"] is not None:
        import jax

        jax.distributed.initialize(
            coordinator_address=specification["coordinator"],
            coordinator_bind_address=specification["coordinator"],  # loopback only
            num_processes=specification["processes"],
            process_id=specification["rank"],
        )
    kind, place, function = kind_and_place
    if function is None:
        sys.argv = [place, *map(str, arguments)]
        sys.path.insert(0, os.path.dirname(place))
        runpy.run_path(place, run_name="__main__")
        return
    value = _function(kind, place, function)(*arguments)
    result = Path(specification["result"])
    unfinished = result.with_suffix(".part")
    unfinished.write_bytes(pickle.dumps(value))
    unfinished.rename(result)


def _function(kind: str, place: str, name: str) -> Callable[..., Any]:
    """Imports the function, from a module by name or from a file."""
    if kind == "module":
        return getattr(importlib.import_module(place), name)
    module_name = Path(place).stem
    spec = importlib.util.spec_from_file_location(module_name, place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _end_with_parent(parent: int) -> None:
    """Has the kernel end this process when the launcher dies, even by SIGKILL (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
