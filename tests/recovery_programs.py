"""What each process of recovery_test runs: a loop of steps in which some processes are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from exit_programs import open_ranks
from failures_programs import wait_for_end
from processes_testing import HIDDEN, TOKENS, TOP_K, Inputs, layer

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
    other = jf.moe.ExpertParallel(
        fabric,
        axis_name="ep",
        num_experts=inputs.experts_in_all,
        top_k=TOP_K,
        max_tokens=TOKENS,
        hidden=HIDDEN,
        dtype=jnp.float32,
        private_tokens=2,
    )
    got = on.jit(lambda x, e, w: layer(other, x, e, w, 2.0))(*operands)
    on.assert_equal(got, expected.layers(2.0), "another context")
    fabric.close()
    found["calls"] = calls
    # JAX's coordinator is in process 0; whoever ends after it is ended by JAX.
    client = jax._src.distributed.global_state.client
    if jax.process_index() == 0:
        wait_for_end(int(client.blocking_key_value_get("test/pid", 60_000)))
    else:
        client.key_value_set("test/pid", str(os.getpid()))
    return found
