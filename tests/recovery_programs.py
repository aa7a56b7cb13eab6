"""What each process of recovery_test runs: a loop of steps in which some processes are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
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
# In which epoch a process ends, and from which step on.
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


class Death:
    """Of this process, if it is one that dies: in its epoch, from its step on, before the last."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._begun = False

    def come(self, epoch: int, step: int) -> None:
        """To be called before each step."""
        victim, first = DEATHS.get(epoch, (-1, -1))
        if jax.process_index() != victim or step < first:
            return
        if not self._begun:  # an epoch may begin after the step
            self._begun = True
            die_soon(self._seed)
        if step == STEPS - 1:
            time.sleep(DEADLINE_S)  # the timer is late, and all others must not come through


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
    death = Death(seed)
    step = calls = 0
    while step < STEPS:
        epoch = fabric.membership.epoch
        death.come(epoch, step)
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


# --- the same by run_steps


def run_steps_without(seed: int, on_peer_loss: str) -> dict[str, Any]:
    """The state is the sum of the steps' numbers: a step too few or too many shows."""
    initialize()
    fabric, on, inputs = open_ranks(DEADLINE_S)
    moe = on.moe
    operands = [on.place(each) for each in inputs.arrays()]
    program = on.jit(lambda x, e, w: layer(moe, x, e, w, 2.0))
    seen: list[tuple[int, int]] = []
    death = Death(seed)

    def step(number: int, state: np.ndarray, membership: Any) -> np.ndarray:
        death.come(membership.epoch, number)
        got = jax.block_until_ready(program(*operands))
        seen.append((number, membership.epoch))
        expected = without(inputs, membership.present).layers(2.0)
        on.assert_equal(got, expected, f"epoch {membership.epoch} step {number}")
        return state + number

    error = ""
    state = np.zeros(())
    try:
        state = jf.run_steps(fabric, step, state, end=STEPS, on_peer_loss=on_peer_loss)
    except (jax.errors.JaxRuntimeError, ValueError) as raised:
        error = str(raised)
        # Whoever closes first would be another one that is lost.
        client = jax._src.distributed.global_state.client
        client.key_value_set(f"test/raised/{jax.process_index()}", "")
        for process in (0, 1, 2):
            client.blocking_key_value_get(f"test/raised/{process}", 60_000)
    epoch = fabric.membership.epoch
    fabric.close()
    leave_in_order(others=[1, 2] if error else [2])
    return {"state": float(state), "seen": seen, "epoch": epoch, "error": error}


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


# --- a process that comes back

RETURNING = 1
STEPS_OF_EACH = 4
LIFE = "RECOVERY_TEST_LIFE"
# For a process to start in, and for the others to find that it has died while they took it back.
REJOIN_S = 15.0


def come_back(seed: int, deaths: Sequence[str]) -> dict[str, Any]:
    """Three processes: one of them is killed, the others go on, it comes back.

    Args:
      seed: of when it is killed.
      deaths: how its lives end, before the last one: "running", or "member": as soon as the others
        have taken it back.
    """
    if int(os.environ["JAX_PROCESS_ID"]) != RETURNING:
        return live()
    if LIFE in os.environ:
        number = int(os.environ[LIFE])
        return live(is_back=number > 0, death=deaths[number], seed=seed + number)
    # Each is a process of its own, whose end the launcher does not see.
    mine = json.loads(sys.argv[1]) | {"parent": os.getpid()}
    again = [sys.executable, "-m", "jax_fabric.testing.launch_child", json.dumps(mine)]
    for number in range(len(deaths)):
        life = subprocess.run(again, env=os.environ | {LIFE: str(number)}, check=False)
        assert life.returncode == -signal.SIGKILL, (number, life.returncode)
    return live(is_back=True)


def go_on(fabric: jf.Fabric, step: int, rejoin: Sequence[int] = ()) -> jf.Membership:
    """What recover's docstring says: who comes back may die while it is taken back."""
    try:
        return fabric.recover(step=step, rejoin=rejoin, timeout_s=REJOIN_S)
    except TimeoutError:
        return fabric.recover(step=step, timeout_s=REJOIN_S)


def live(*, is_back: bool = False, death: str = "", seed: int = 0) -> dict[str, Any]:
    """A loop of steps: with all, without the process that is killed, and with all again."""
    initialize()
    inputs = Inputs(len(jax.devices()))
    mesh = jax.make_mesh((inputs.ranks,), ("ep",))
    if not is_back:
        jf.Fabric(mesh, timeout_s=DEADLINE_S).close()  # the next one is what it comes back to
    # The others may be busy with its former life when it comes.
    timeout_s = 3 * DEADLINE_S if is_back else DEADLINE_S
    fabric = jf.Fabric(mesh, timeout_s=timeout_s, rejoin=is_back)
    membership = fabric.membership
    if death == "member":
        os.kill(os.getpid(), signal.SIGKILL)
    on, other = (open_context(fabric, inputs, private_tokens=rows) for rows in (TOKENS, 2))

    def stack(x, e, w):
        return lax.scan(lambda x, s: (layer(on.moe, x, e, w, s), None), x, jnp.asarray(SCALES))[0]

    once = on.jit(lambda x, e, w: layer(on.moe, x, e, w, 2.0))
    twice = on.jit(lambda x, e, w: layer(other.moe, layer(on.moe, x, e, w, 0.5), e, w, 2.0))
    looped = on.jit(stack)
    gradient = on.jit(jax.grad(lambda x, e, w: stack(x, e, w).sum()))
    operands = [on.place(each) for each in inputs.arrays()]
    ones = Inputs(inputs.ranks)
    ones.x = np.ones_like(inputs.x)

    def run_step(step: int) -> None:
        source = without(inputs, membership.present)
        ones.weights = source.weights
        launches = [(once, source.layers(2.0)), (twice, source.layers(0.5, 2.0))]
        if step % 2:
            launches += [(looped, source.layers(*SCALES)), launches[0], launches[0]]
        if step == 3 * STEPS_OF_EACH - 1:
            launches += [(gradient, ones.layers(*SCALES)), launches[0]]
        results = [(program(*operands), want) for program, want in launches]
        for number, (got, want) in enumerate(results):
            on.assert_equal(got, want, f"step {step} launch {number}")

    found: dict[str, Any] = {"members": [membership.processes], "errors": []}
    step = found["first_step"] = membership.step
    while step < 3 * STEPS_OF_EACH:
        if death and step == (2 if is_back else 1) * STEPS_OF_EACH:
            die_soon(seed)
        try:
            if step == 2 * STEPS_OF_EACH and len(membership.processes) == 2:
                membership = go_on(fabric, step, rejoin=[RETURNING])
                found["members"].append(membership.processes)
                continue
            run_step(step)
            step += 1
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            found["errors"].append(str(error))
            membership = go_on(fabric, step)
            found["members"].append(membership.processes)
            step = membership.step
    fabric.check()
    # A context that is made now is everybody's.
    newest = open_context(fabric, inputs, private_tokens=1).moe
    got = on.jit(lambda x, e, w: layer(newest, x, e, w, 2.0))(*operands)
    on.assert_equal(got, inputs.layers(2.0), "another context")
    fabric.close()
    leave_in_order(others=[1, 2])
    return found


def be_left_out() -> str:
    """A process that is late is taken for dead, and learns of it."""
    initialize()
    fabric, on, inputs = open_ranks(DEADLINE_S)
    program = on.jit(lambda x, e, w: layer(on.moe, x, e, w, 2.0))
    operands = [on.place(each) for each in inputs.arrays()]
    on.assert_equal(program(*operands), inputs.layers(2.0))
    meet("before", [0, 1])
    errors = ""
    if jax.process_index() == 0:
        membership = fabric.recover(timeout_s=1)
        on.assert_equal(program(*operands), without(inputs, membership.present).layers(2.0))
        meet("alone", [0, 1])
    else:
        meet("alone", [0, 1])
        for again in (fabric.recover, lambda: jf.Fabric(fabric.mesh, rejoin=True)):
            try:
                again()
            except RuntimeError as error:
                errors += f"{error}\n"
    fabric.close()
    leave_in_order(others=[1])
    return errors
