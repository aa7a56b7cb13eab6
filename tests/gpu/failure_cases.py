"""Ranks that do not come, and fabrics that are gone. Each is to be the last case of its process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from checker import Checker, factors, meet, routing


def is_last() -> bool:
    """Whether this process has the highest index."""
    return jax.process_index() == jax.process_count() - 1


def leave_in_order(others: Sequence[int]) -> None:
    """JAX's coordinator is in process 0; whoever ends after it is ended by JAX."""
    client = jax._src.distributed.global_state.client
    if jax.process_index() != 0:
        client.key_value_set(f"test/pid/{jax.process_index()}", str(os.getpid()))
        return
    for process in others:
        pid = int(client.blocking_key_value_get(f"test/pid/{process}", 30_000))
        deadline = time.monotonic() + 30
        while not _has_ended(pid) and time.monotonic() < deadline:
            time.sleep(0.05)


def _has_ended(pid: int) -> bool:
    """Also where its parent has not asked yet how."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def expect_failure(
    checker: Checker, step: Callable[..., jax.Array], operands: Sequence[jax.Array], names: str
) -> None:
    """A step gives NaN within the deadline, and the fabric says why, with these words."""
    begin = time.monotonic()
    out = step(*operands).block_until_ready()
    seconds = time.monotonic() - begin
    checker.expect_nothing(out, "a step without a rank")
    try:
        checker.fabric.check()
    except RuntimeError as error:
        assert names in str(error), error
        assert seconds < 3 * checker.fabric.timeout_s, seconds
        print(f"  after {seconds:.1f} s: {error}")
        return
    raise AssertionError("no error although a rank was missing")


def silent(checker: Checker, steps: int) -> None:
    """The last rank's process misses a call: the others get an error with its rank, and NaN."""
    del steps
    step = checker.on_ranks(checker.layer)
    operands = [checker.put(each) for each in routing(checker.sizes, 1)]
    step(*operands).block_until_ready()
    if is_last():
        time.sleep(3 * checker.fabric.timeout_s)
        return
    names = f"waited {checker.fabric.timeout_s:g} s for rank(s) {checker.ranks - 1}"
    expect_failure(checker, step, operands, names)


def killed(checker: Checker, steps: int) -> None:
    """The last process is killed while its stream is idle: the others go on without the fabric."""
    step = checker.on_ranks(checker.layer)
    x, experts, weights = routing(checker.sizes, 1)
    operands = [checker.put(each) for each in (x, experts, weights)]
    for _ in range(max(3, steps)):
        out = step(*operands).block_until_ready()
    checker.expect(out, x * factors(experts, weights), "before")
    meet("all are idle")
    if is_last():
        os.kill(os.getpid(), signal.SIGKILL)
    expect_failure(checker, step, operands, f"rank {checker.ranks - 1}")
    expect_failure(checker, step, operands, f"rank {checker.ranks - 1}")
    assert float(jax.jit(lambda v: (v @ v).sum())(jnp.ones((8, 8)))) == 512, "work of its own"
    begin = time.monotonic()
    checker.fabric.close()
    assert time.monotonic() - begin < 10, "closing waited for the dead"
    leave_in_order(range(1, jax.process_count() - 1))


def misused(checker: Checker, steps: int) -> None:
    """A half that is done twice gives NaN, the fabric says so once, and the channel goes on."""
    del steps
    moe = checker.moe
    x, experts, weights = routing(checker.sizes, 1)

    def twice(x, experts, weights):
        pending = moe.dispatch_start(x, experts, weights)
        first = moe.dispatch_done(pending)
        return first.weights + moe.dispatch_done(pending, overlap=first.token).weights

    operands = [checker.put(each) for each in (x, experts, weights)]
    step, misuse = checker.on_ranks(checker.layer), checker.on_ranks(twice)
    wanted = x * factors(experts, weights)
    checker.expect(step(*operands), wanted, "before")
    words = "was to end a call that was not started here, or has been done already"
    for number in range(3):
        expect_failure(checker, misuse, operands, words)
        checker.fabric.check()
        checker.expect(step(*operands), wanted, f"after {number + 1} calls that were misused")
    checker.fabric.check()


def closed(checker: Checker, steps: int) -> None:
    """A program that was compiled before the fabric closed says so, or gives NaN."""
    step = checker.on_ranks(checker.layer)
    operands = [checker.put(each) for each in routing(checker.sizes, 1)]
    for _ in range(max(5, steps)):
        step(*operands).block_until_ready()
    checker.fabric.close()
    for _ in range(5):
        try:
            out = step(*operands).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            assert "closed" in str(error), error
            continue
        checker.expect_nothing(out, "a closed fabric")
