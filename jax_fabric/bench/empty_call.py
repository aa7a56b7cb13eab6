"""What a dispatch costs that sends nothing, beside a custom call that does nothing.

One rank, one token that no expert wants: what is left of dispatch is XLA's call, the channel, the
worker and the thread that ends the call. The other call has the same operands and results.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_fabric import Fabric, moe, primitives
from jax_fabric.bench.exchange import AXIS, OURS, over_ranks
from jax_fabric.bench.interleave import Contender, interleave

EMPTY_CALL = "empty FFI call"
#: Calls of the program that makes more than one.
CALLS = 100
_HIDDEN = 8

# Of x, expert ids, weights and what to come after: all results, the one to come after first.
Call = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]


def measure(
    repetitions: int, timeout_s: float
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Times both contenders.

    Args:
      repetitions: timed programs of each.
      timeout_s: of the fabric.

    Returns:
      For each contender the seconds of a program of one call, and those of one of :data:`CALLS`
      calls that a program makes one after the other.
    """
    mesh = jax.make_mesh((1,), (AXIS,), devices=jax.local_devices()[:1])
    operands = jax.device_put(
        (
            np.ones((1, _HIDDEN), np.float32),
            np.full((1, 1), -1, np.int32),
            np.ones((1, 1), np.float32),
            np.zeros((1,), np.int32),
        ),
        NamedSharding(mesh, PartitionSpec(AXIS)),
    )
    with Fabric(mesh, timeout_s=timeout_s) as fabric:
        calls = {OURS: _dispatch(fabric)}
        results = jax.eval_shape(over_ranks(mesh, calls[OURS]), *operands)
        calls[EMPTY_CALL] = _empty_call([(each.shape, each.dtype) for each in results])
        once = _interleave(mesh, calls, lambda call: call, operands, repetitions)
        many = _interleave(mesh, calls, _in_a_row, operands, repetitions)
    return once, {name: seconds / CALLS for name, seconds in many.items()}


def _dispatch(fabric: Fabric) -> Call:
    context = moe.ExpertParallel(
        fabric,
        axis_name=AXIS,
        num_experts=1,
        top_k=1,
        max_tokens=1,
        hidden=_HIDDEN,
        dtype=jnp.float32,
    )

    def call(
        x: jax.Array, experts: jax.Array, weights: jax.Array, after: jax.Array
    ) -> tuple[jax.Array, ...]:
        dispatched = context.dispatch(x, experts, weights, after=after)
        return dispatched.token, *jax.tree.leaves(dispatched)

    return call


def _empty_call(results: list[tuple[tuple[int, ...], np.dtype]]) -> Call:
    return lambda *operands: primitives.call("jf_empty", operands, results)


def _in_a_row(call: Call) -> Call:
    def calls(
        x: jax.Array, experts: jax.Array, weights: jax.Array, after: jax.Array
    ) -> tuple[jax.Array, ...]:
        step = lambda after, _: (call(x, experts, weights, after)[0], None)  # noqa: E731
        return lax.scan(step, after, length=CALLS)[0]

    return calls


def _interleave(
    mesh: jax.sharding.Mesh,
    calls: dict[str, Call],
    program: Callable[[Call], Call],
    operands: tuple[jax.Array, ...],
    repetitions: int,
) -> dict[str, np.ndarray]:
    def contender(name: str, run: Callable[..., object]) -> Contender:
        return Contender(name, lambda _: run(*operands))

    contenders = [contender(name, over_ranks(mesh, program(call))) for name, call in calls.items()]
    return interleave(contenders, repetitions)
