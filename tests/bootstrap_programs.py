"""Other processes of bootstrap_test."""

from __future__ import annotations

import os
import sys
import traceback

import jax
import jax.numpy as jnp
from processes_testing import HIDDEN, TOKENS, TOP_K, Inputs, Ranks, layer, world

import jax_fabric as jf
from jax_fabric import bootstrap, engine, memory

SECRET = b"of all processes of this test"


def open_board(kind, place, *, keep=False, **options):
    """A bootstrap of a kind: at a folder, or at an address."""
    if kind == "file":
        return bootstrap.FileBootstrap(place, run="7")
    return bootstrap.AddressBootstrap(place, secret=SECRET, keep=keep, **options)


def meet(kind, place, number, count, answers):
    """Everybody publishes, fetches what all have, and proposes: what came of it."""
    try:
        board = open_board(kind, place)
        board.publish(f"blob/{number}", bytes([number]) * (1 << 16))
        blobs = [board.fetch(f"blob/{each}", 60.0) for each in range(count)]
        chosen = board.publish_first("chosen", str(number).encode())
        answers.put((number, [(blob[0], len(blob)) for blob in blobs], chosen))
    except Exception:
        answers.put((number, traceback.format_exc(), b""))


def exchange(kind, place):
    """A layer of a fabric that finds its peers so; returns nothing where all is right."""
    first = jax.process_index() == 0
    board = open_board(kind, place, keep=first)
    inputs = Inputs(world())
    mesh = jax.make_mesh((inputs.ranks,), ("ep",))
    with jf.Fabric(mesh, timeout_s=60.0, bootstrap=board, secret=SECRET) as fabric:
        moe = jf.moe.ExpertParallel(
            fabric,
            axis_name="ep",
            num_experts=inputs.experts_in_all,
            top_k=TOP_K,
            max_tokens=TOKENS,
            hidden=HIDDEN,
            dtype=jnp.float32,
        )
        on = Ranks(mesh, moe, jax.sharding.PartitionSpec("ep"))
        f = on.jit(lambda x, e, w: layer(moe, x, e, w, 2.0))
        on.assert_equal(f(*map(on.place, inputs.arrays())), inputs.layers(2.0))
        # The board stays until everybody is done.
        board.publish(f"done/{jax.process_index()}", b"")
        for process in range(jax.process_count()):
            board.fetch(f"done/{process}", 60.0)
        if first:
            for process in range(1, jax.process_count()):
                board.fetch(f"gone/{process}", 60.0)
        else:
            board.publish(f"gone/{jax.process_index()}", b"")


def decoder(kind, place, name):
    """Host code without JAX's processes: takes what a prefiller writes, and goes."""
    board = open_board(kind, place)
    with engine.TransferEngine(timeout_s=30, secret=SECRET) as transfers:
        group = transfers.add_group(name)
        region = group.register(memory.allocate(4096), memory.Access.REMOTE_WRITE)
        (immediate,) = group.allocate_immediates(1)
        board.publish(f"{name}/address", group.address())
        board.publish(f"{name}/memory", bytes(region.descriptor))
        board.publish(f"{name}/immediate", str(immediate).encode())
        group.add_peer(board.fetch("prefiller/address", 30))
        group.expect(immediate).wait()
        board.publish(f"{name}/got", region.array.tobytes())
        board.fetch("over", 60)


if __name__ == "__main__":
    assert not os.environ.get("JAX_COORDINATOR_ADDRESS")
    decoder(*sys.argv[1:])
