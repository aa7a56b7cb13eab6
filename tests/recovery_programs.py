"""What each process of recovery_test runs: a loop of steps in which some processes are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from exit_programs import open_ranks
from failures_programs import error_of, meet, wait_for_end
from jax import lax
from jax.sharding import PartitionSpec as P
from processes_testing import HIDDEN, TOKENS, TOP_K, Inputs, Ranks, layer

import jax_fabric as jf

STEPS = 40
# In which step of which epoch a process begins to end.
DEATHS = {0: (3, 5), 1: (1, 20)}  # epoch: (process, step)
DEADLINE_S = 20.0


def initialize() -> None:
    """Of jax.distributed, so that JAX does not end the survivors of a process."""
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(
        coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
        shutdown_timeout_seconds=2,
    )


def without(inputs: Inputs, present: np.ndarray) -> Inputs:
    """The same with nothing for experts that are lost: what the others should compute."""
    masked = Inputs(inputs.ranks)
    experts_per_rank = -(-inputs.experts_in_all // inputs.ranks)
    masked.weights = inputs.weights * present[inputs.experts // experts_per_rank]
    return masked


def die_soon(seed: int) -> None:
    """At any point of the calls that come, or between two of them."""
    delay_s = random.Random(seed).uniform(0, 0.02)
    threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


def leave_in_order(others: Sequence[int]) -> None:
    """JAX's coordinator is in process 0; whoever ends after it is ended by JAX."""
    client = jax._src.distributed.global_state.client
    if jax.process_index() == 0:
        for process in others:
            wait_for_end(int(client.blocking_key_value_get(f"test/pid/{process}", 60_000)))
    else:
        client.key_value_set(f"test/pid/{jax.process_index()}", str(os.getpid()))


def open_context(fabric: jf.Fabric, inputs: Inputs, **options: Any) -> Ranks:
    moe = jf.moe.ExpertParallel(
        fabric,
        axis_name="ep",
        num_experts=inputs.experts_in_all,
        top_k=TOP_K,
        max_tokens=TOKENS,
        hidden=HIDDEN,
        dtype=jnp.float32,
        **options,
    )
    return Ranks(fabric.mesh, moe, P("ep"))


def survive(seed: int) -> dict[str, Any]:
    """Runs the loop; returns what the epochs were like."""
    initialize()
    fabric, on, inputs = open_ranks(DEADLINE_S)
    moe = on.moe
    operands = [on.place(each) for each in inputs.arrays()]
    program = on.jit(lambda x, e, w: layer(moe, x, e, w, 2.0))
    gradient = on.jit(jax.grad(lambda x, e, w: layer(moe, x, e, w, 2.0).sum()))
    found: dict[str, Any] = {"errors": [], "steps": [], "members": []}
    step = calls = 0
    while step < STEPS:
        epoch = fabric.membership.epoch
        if (jax.process_index(), step) == DEATHS.get(epoch):
            die_soon(seed)
        expected = without(inputs, fabric.membership.present)
        try:
            got = jax.block_until_ready(program(*operands))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            found["errors"].append(str(error))
            membership = fabric.recover(step=step)
            found["steps"].append((step, membership.step))
            found["members"].append(membership.processes)
            step = membership.step
            continue
        on.assert_equal(got, expected.layers(2.0), f"epoch {epoch} step {step}")
        step += 1
        calls += 1
    ones = Inputs(inputs.ranks)
    ones.x = np.ones_like(inputs.x)
    ones.weights = expected.weights
    on.assert_equal(gradient(*operands), ones.layers(2.0), "gradient")
    fabric.check()
    # A context that is made now has the same members.
    other = open_context(fabric, inputs, private_tokens=2).moe
    got = on.jit(lambda x, e, w: layer(other, x, e, w, 2.0))(*operands)
    on.assert_equal(got, expected.layers(2.0), "another context")
    fabric.close()
    found["calls"] = calls
    leave_in_order(others=[2])
    return found


# --- survivors that have launched programs a different number of times

VICTIM, AHEAD, BEHIND = 1, 0, 2
SCALES = (2.0, 0.5, 4.0)


def go_on_apart() -> dict[str, Any]:
    """One of three processes is killed; of the others one has launched more than the other."""
    initialize()
    inputs = Inputs(len(jax.devices()))
    fabric = jf.Fabric(jax.make_mesh((inputs.ranks,), ("ep",)), timeout_s=DEADLINE_S)
    on = open_context(fabric, inputs, channels=2)
    moe = on.moe

    def stack(x, e, w):
        return lax.scan(lambda x, s: (layer(moe, x, e, w, s), None), x, jnp.asarray(SCALES))[0]

    def halves(x, e, w):
        r = moe.dispatch_done(moe.dispatch_start(x, e, w, channel=1))
        return moe.combine(r.tokens * (1.0 + lax.axis_index("ep") % 2), r, channel=1)

    once = on.jit(lambda x, e, w: layer(moe, x, e, w, 2.0))
    looped, split = on.jit(stack), on.jit(halves)
    gradient = on.jit(jax.grad(lambda x, e, w: stack(x, e, w).sum()))
    start = on.jit(lambda x, e, w: moe.dispatch_start(x, e, w, channel=1).ticket)
    operands = [on.place(each) for each in inputs.arrays()]
    ones = Inputs(inputs.ranks)
    ones.x = np.ones_like(inputs.x)
    programs = {
        "once": (once, (2.0,), inputs),
        "looped": (looped, SCALES, inputs),
        "split": (split, (1.0,), inputs),
        "gradient": (gradient, SCALES, ones),
    }

    def run(name: str, times: int) -> None:
        """Some launches in flight together."""
        program, scales, source = programs[name]
        source.weights = without(inputs, fabric.membership.present).weights
        for got in [program(*operands) for _ in range(times)]:
            on.assert_equal(got, source.layers(*scales), f"{fabric.membership.epoch} {name}")

    for name in ("once", "looped", "split", "looped", "gradient"):
        run(name, 2)
    # Started and never done: it occupies its channel when the others recover.
    jax.block_until_ready(start(*operands))
    meet("started", [VICTIM, AHEAD, BEHIND])
    if jax.process_index() == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    _, e, w = operands
    errors = [error_of(lambda: once(*operands))[0]]
    if jax.process_index() == AHEAD:
        # The last two launches never run: what they take has failed. XLA counts them.
        errors += [error_of(lambda: once(once(looped(*operands), e, w), e, w))[0] for _ in range(2)]
    membership = fabric.recover(step=7 if jax.process_index() == AHEAD else 6)
    for name in ("looped", "once", "once", "split", "gradient", "looped", "once"):
        run(name, 3)
    fabric.check()
    fabric.close()
    leave_in_order(others=[BEHIND])
    return {"errors": errors, "step": membership.step}
