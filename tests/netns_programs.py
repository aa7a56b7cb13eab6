"""What each process of netns_test runs, on a host of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

import jax
import processes_programs as programs
from exit_programs import open_ranks
from failures_programs import error_of, meet
from nic_programs import run_checks
from processes_testing import Expected, layer, world
from recovery_programs import initialize, leave_in_order

from jax_fabric import engine, errors

# Above the 10 s of silence after which a peer is lost: then its name is in every error.
TIMEOUT_S = 25.0
_PATIENCE_S = 120.0


def exchange(want: Expected) -> dict[str, str]:
    """What went wrong of an MoE exchange and its gradients, and where this is."""
    return {"host": socket.gethostname(), **run_checks(want)}


def one_exchange(want: Expected) -> str:
    """Over as many NICs as JAX_FABRIC_NICS names."""
    programs.forward(want)
    return socket.gethostname()


def survive_a_cut(folder: str) -> dict[str, object]:
    """Exchanges until one fails, tells so, and begins anew when the link is there again."""
    initialize()
    process = jax.process_index()
    fabric, on, inputs = open_ranks(TIMEOUT_S)
    with contextlib.closing(fabric):
        f = on.jit(lambda x, e, w: layer(on.moe, x, e, w, 2.0))
        operands = [on.place(each) for each in inputs.arrays()]
        on.assert_equal(f(*operands), inputs.layers(2.0))
        Path(folder, f"running{process}").touch()
        deadline = time.monotonic() + _PATIENCE_S
        error = ""
        while not error and time.monotonic() < deadline:
            error, seconds = error_of(lambda: f(*operands))
        # Nobody closes before all have failed by themselves.
        Path(folder, f"failed{process}").touch()
        _wait_for(Path(folder, "restored"))
    fabric, on, _ = open_ranks(60.0)
    with contextlib.closing(fabric):
        f = on.jit(lambda x, e, w: layer(on.moe, x, e, w, 0.5))
        on.assert_equal(f(*map(on.place, inputs.arrays())), inputs.layers(0.5))
        meet("afterwards", list(range(world())))
    leave_in_order([each for each in range(world()) if each != process])
    return {"error": error, "seconds": seconds, "afterwards": "right"}


def through_memory(folder: str) -> str:
    """What a group of the machine's own memory says about a peer on another host."""
    rank = int(os.environ["JAX_PROCESS_ID"])
    with engine.TransferEngine(timeout_s=5.0) as transfers:
        group = transfers.add_group(f"host{rank}", domain="local")
        own = Path(folder, f"address{rank}")
        own.with_suffix(".part").write_bytes(group.address())
        own.with_suffix(".part").rename(own)
        other = Path(folder, f"address{1 - rank}")
        _wait_for(other)
        try:
            group.wait_peers([group.add_peer(other.read_bytes())])
            said = "reached"
        except errors.FabricError as error:
            said = str(error)
        # Not before the other one has tried.
        Path(folder, f"tried{rank}").touch()
        _wait_for(Path(folder, f"tried{1 - rank}"))
        return said


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} does not appear")
        time.sleep(0.05)
