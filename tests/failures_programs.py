"""What each process of failures_test and exit_test runs."""

from __future__ import annotations

import functools
import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from processes_testing import Inputs, Ranks, layer, ranks

import jax_fabric as jf

DEADLINE_S = 2.0
GENEROUS_S = 30.0


def error_of(call: Callable[[], Any]) -> tuple[str, float]:
    """What it raises (empty for nothing), and after how many seconds."""
    begin = time.monotonic()
    try:
        jax.block_until_ready(call())
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    return "", time.monotonic() - begin


def meet(name: str, processes: list[int]) -> None:
    """Waits for other processes, by the coordination service."""
    client = jax._src.distributed.global_state.client
    client.key_value_set(f"test/{name}/{jax.process_index()}", "here")
    for process in processes:
        client.blocking_key_value_get(f"test/{name}/{process}", 60_000)


def wait_for_end(pid: int, timeout_s: float = 30.0) -> float:
    """Waits until a child of the launcher has ended; returns how long it took."""
    begin = time.monotonic()
    while time.monotonic() < begin + timeout_s:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                    break
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(0.01)
    return time.monotonic() - begin


def works(mesh: jax.sharding.Mesh) -> bool:
    """Whether a new fabric over the mesh gives right results."""
    inputs = Inputs(mesh.size)
    with ranks(inputs, mesh) as on:
        got = on.run(lambda x, e, w: layer(on.moe, x, e, w, 2.0), *inputs.arrays())
        on.assert_equal(got, inputs.layers(2.0))
    return True


# --- a rank that does not come


def absent(who: int, when: str) -> dict[str, Any]:
    """Process `who` is absent from its third exchange on; the others say what they saw.

    Args:
      who: the process. It comes late: before the others close (combine), or after (dispatch).
      when: "dispatch": before a dispatch; "combine": between dispatch and combine.
    """
    inputs = Inputs(len(jax.devices()))
    me = jax.process_index()
    others = [process for process in range(jax.process_count()) if process != who]
    found: dict[str, Any] = {}
    fabric = jf.Fabric(jax.make_mesh((inputs.ranks,), ("ep",)), timeout_s=GENEROUS_S)
    moe = jf.moe.ExpertParallel(
        fabric,
        axis_name="ep",
        num_experts=inputs.experts_in_all,
        top_k=2,
        max_tokens=inputs.x.shape[1],
        hidden=inputs.x.shape[2],
        dtype=jnp.float32,
        timeout_s=DEADLINE_S,
    )
    on = Ranks(fabric.mesh, moe, jax.sharding.PartitionSpec("ep"))
    operands = [on.place(each) for each in inputs.arrays()]
    whole = on.jit(lambda x, e, w: layer(moe, x, e, w, 2.0))
    dispatch = on.jit(moe.dispatch)
    combine = on.jit(lambda r: moe.combine(r.tokens, r))
    # Compiled before somebody waits for it.
    whole, dispatched = whole.lower(*operands).compile(), dispatch(*operands)
    combine = combine.lower(dispatched).compile()
    on.assert_equal(whole(*operands), inputs.layers(2.0))
    dispatched = jax.block_until_ready(dispatch(*operands))
    jax.block_until_ready(combine(dispatched))
    if when == "combine":
        dispatched = jax.block_until_ready(dispatch(*operands))
    meet(f"{when} ready", list(range(jax.process_count())))
    if me == who:
        meet(f"{when} failed", others)
        if when == "dispatch":
            meet(f"{when} closed", others)
        # Whatever comes late is an error, too, and lands in nobody's memory.
        found["late"], _ = error_of(lambda: whole(*operands))
        if when == "combine":
            meet(f"{when} late", [who])
    else:
        call = (lambda: whole(*operands)) if when == "dispatch" else (lambda: combine(dispatched))
        found["error"], found["seconds"] = error_of(call)
        found["again"], found["seconds_again"] = error_of(lambda: whole(*operands))
        try:
            fabric.check()
        except RuntimeError as error:
            found["check"] = str(error)
        found["other_work"] = float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8))))
        meet(f"{when} failed", others)
        if when == "combine":
            meet(f"{when} late", [who])
    fabric.close()
    if me != who:
        if when == "dispatch":
            meet(f"{when} closed", others)
        survivors = [device for device in jax.devices() if device.process_index != who]
        found["survivors"] = works(jax.sharding.Mesh(np.array(survivors), ("ep",)))
    return found


def killed(who: int) -> dict[str, Any]:
    """Process `who` is killed while the others wait for it in an exchange."""
    # JAX ends the survivors of a process, and waits for it at exit, unless told otherwise.
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(
        coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
        shutdown_timeout_seconds=2,
    )
    inputs = Inputs(len(jax.devices()))
    found: dict[str, Any] = {}
    fabric = jf.Fabric(jax.make_mesh((inputs.ranks,), ("ep",)), timeout_s=GENEROUS_S)
    moe = jf.moe.ExpertParallel(
        fabric,
        axis_name="ep",
        num_experts=inputs.experts_in_all,
        top_k=2,
        max_tokens=inputs.x.shape[1],
        hidden=inputs.x.shape[2],
        dtype=jnp.float32,
        timeout_s=2 * DEADLINE_S,
    )
    on = Ranks(fabric.mesh, moe, jax.sharding.PartitionSpec("ep"))
    operands = [on.place(each) for each in inputs.arrays()]
    whole = on.jit(lambda x, e, w: layer(moe, x, e, w, 2.0))
    on.assert_equal(whole(*operands), inputs.layers(2.0))
    meet("ready", list(range(jax.process_count())))
    if jax.process_index() == who:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    found["error"], found["seconds"] = error_of(lambda: whole(*operands))
    fabric.close()
    survivors = [device for device in jax.devices() if device.process_index != who]
    found["survivors"] = works(jax.sharding.Mesh(np.array(survivors), ("ep",)))
    # JAX's coordinator is in process 0; whoever ends after it is ended by JAX.
    client = jax._src.distributed.global_state.client
    if jax.process_index() == 0:
        wait_for_end(int(client.blocking_key_value_get("test/pid/1", 60_000)))
    else:
        client.key_value_set("test/pid/1", str(os.getpid()))
    return found


# --- processes that do not agree


def disagree() -> dict[str, tuple[str, float]]:
    """Ways in which process 1 may differ from the others, and what each process says."""
    me = jax.process_index()
    inputs = Inputs(len(jax.devices()))
    found = {}

    def different_configuration(**options: Any) -> None:
        with ranks(inputs, **(options if me == 1 else {})):
            pass

    for name, options in (
        ("capacity", {"capacity": 7}),
        ("hidden", {"hidden": 8}),
        ("channels", {"channels": 2}),
        ("dtype", {"dtype": jnp.bfloat16}),
    ):
        found[name] = error_of(lambda options=options: different_configuration(**options))

    def different_rows() -> Any:
        with ranks(inputs, timeout_s=DEADLINE_S) as on:
            rows = 5 if me == 1 else 6
            f = on.jit(lambda x, e, w: moe_tokens(on.moe, x[:rows], e[:rows], w[:rows]))
            return jax.block_until_ready(f(*map(on.place, inputs.arrays())))

    def different_operation() -> Any:
        with ranks(inputs, timeout_s=DEADLINE_S) as on:
            f = on.jit(lambda x, e, w: on.moe.dispatch(x, e, w))
            operands = [on.place(each) for each in inputs.arrays()]
            r = jax.block_until_ready(f(*operands))
            if me == 1:
                return jax.block_until_ready(on.jit(lambda r: on.moe.combine(r.tokens, r))(r))
            return jax.block_until_ready(f(*operands))

    def one_more_call() -> Any:
        with ranks(inputs, timeout_s=DEADLINE_S) as on:
            operands = [on.place(each) for each in inputs.arrays()]

            def f(x, e, w):
                for _ in range(1 if me == 1 else 2):
                    x = layer(on.moe, x, e, w, 2.0)
                return x

            try:
                jax.block_until_ready(on.jit(f)(*operands))
            finally:  # the others' fabrics are open as long as this one's
                meet("one more", list(range(jax.process_count())))

    for test in (different_rows, different_operation, one_more_call):
        found[test.__name__] = error_of(test)
    found["works"] = (str(works(jax.make_mesh((inputs.ranks,), ("ep",)))), 0.0)
    return found


def moe_tokens(moe: jf.moe.ExpertParallel, x: Any, e: Any, w: Any) -> Any:
    return moe.dispatch(x, e, w).tokens


def overflow(*, batched: bool = False) -> dict[str, Any]:
    """More rows than rank 1 has room for; batched: in the second of two elements, under vmap."""
    inputs = Inputs(len(jax.devices()))
    experts = np.full_like(inputs.experts, inputs.experts_in_all // inputs.ranks + 1)
    if batched:
        experts[:, : experts.shape[1] // 2] = -1

    def halves(each: jax.Array) -> jax.Array:
        return each.reshape(2, -1, each.shape[-1])

    found: dict[str, Any] = {}

    def calls() -> None:
        with ranks(inputs, capacity=5) as on:
            tokens = functools.partial(moe_tokens, on.moe)
            f = on.jit(tokens)
            if batched:
                f = on.jit(lambda *each: jax.vmap(tokens)(*map(halves, each)))
            operands = [on.place(each) for each in (inputs.x, experts, inputs.weights)]
            error, seconds = error_of(lambda: f(*operands))
            found.update(error=error, seconds=seconds)
            if batched and not error:
                error, seconds = error_of(lambda: f(*operands))
                found["next call"] = {"error": error, "seconds": seconds}
            meet(f"overflow batched={batched}", list(range(jax.process_count())))

    error_of(calls)  # says the same once more
    return found


def run_all() -> dict[str, Any]:
    """What each of the above found."""
    found: dict[str, Any] = {}
    for name, call in (
        ("combine", lambda: absent(1, "combine")),
        ("dispatch", lambda: absent(0, "dispatch")),
        ("disagree", disagree),
        ("overflow", overflow),
        ("batched overflow", lambda: overflow(batched=True)),
    ):
        begin = time.monotonic()
        try:
            found[name] = call()
        except Exception:
            found[name] = {"failed": traceback.format_exc()}
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    return found
