"""Random configurations of everything at once, forward and backward, against the oracle."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from moe_testing import Case, by_rank, context, run

from jax_fabric.testing import oracle, routing

TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}


@dataclasses.dataclass(frozen=True)
class Draw:
    """One configuration with its inputs."""

    case: Case
    options: dict[str, Any]
    x: np.ndarray
    experts: np.ndarray
    weights: np.ndarray
    weighted: bool
    zero_padding: bool


def draw(seed: int) -> Draw:
    rng = np.random.default_rng(seed)
    experts = int(rng.integers(1, 18))
    dtype = str(rng.choice(list(TOLERANCE)))
    case = Case(
        ranks=int(rng.integers(1, 9)),
        tokens=int(rng.integers(1, 24)),
        experts=experts,
        top_k=int(rng.integers(1, min(experts, 6) + 1)),
        hidden=int(rng.integers(1, 70)),
        dtype=jnp.dtype(dtype),
        routing=str(rng.choice(list(routing.GENERATORS))),
        seed=seed,
    )
    x, ids, weights = (np.array(each) for each in case.inputs())
    # Ids that route nowhere, and experts that a token names twice.
    odd = rng.random(ids.shape)
    ids = np.where(odd < 0.1, rng.choice([-1, experts, 2**31 - 1], ids.shape), ids)
    ids = np.where(odd > 0.9, ids[..., :1], ids).astype(np.int32)
    max_tokens = case.tokens + int(rng.integers(0, 3))
    options = dict(
        max_tokens=max_tokens,
        private_tokens=int(rng.integers(1, max_tokens + 1)) if rng.random() < 0.7 else None,
        combine_dtype="float32" if rng.random() < 0.3 else None,
    )
    if rng.random() < 0.3:
        options |= dict(capacity=int(rng.integers(1, 3 * case.tokens)), on_overflow="drop")
    return Draw(case, options, x, ids, weights, rng.random() < 0.7, rng.random() < 0.5)


def results(dispatch: Any, combine: Any, x: Any, weights: Any, cotangent: Any) -> Any:
    """(dispatched, combined) and the gradients in x and weights of a layer."""

    def loss(x, weights):
        r = dispatch(x, weights)
        out = combine(r.tokens * 1.5, r)
        return (out.astype(jnp.float32) * cotangent).sum(), (r, out)

    gradients, found = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, weights)
    return found, gradients


def ours(d: Draw, cotangent: np.ndarray) -> tuple[tuple[np.ndarray, ...], int]:
    """Results as in `check`, and the capacity."""
    with context(d.case, **d.options) as (mesh, moe):

        def layer(x, experts, weights, cotangent):
            (r, out), gradients = results(
                lambda x, w: moe.dispatch(x, experts, w, zero_padding=d.zero_padding),
                lambda y, r: moe.combine(y, r, weighted=d.weighted),
                x,
                weights,
                cotangent,
            )
            used = jnp.arange(moe.capacity) < r.group_sizes.sum()
            tokens = r.tokens if d.zero_padding else jnp.where(used[:, None], r.tokens, 0)
            return tokens, r.weights, r.group_sizes, r.dropped, out, *gradients

        out = run(layer, mesh, *map(jnp.asarray, (d.x, d.experts, d.weights, cotangent)))
        return tuple(by_rank(each, d.case.ranks) for each in out), moe.capacity


def check(seed: int) -> None:
    d = draw(seed)
    cotangent = np.random.default_rng(seed).standard_normal(d.x.shape).astype(np.float32)
    got, capacity = ours(d, cotangent)

    @jax.jit
    def reference(x, weights):
        return results(
            lambda x, w: oracle.dispatch(
                x, d.experts, w, num_experts=d.case.experts, capacity=capacity
            ),
            lambda y, r: oracle.combine(
                y,
                r,
                tokens=d.case.tokens,
                weighted=d.weighted,
                combine_dtype=d.options["combine_dtype"],
            ),
            x,
            weights,
            cotangent,
        )

    (r, out), gradients = reference(jnp.asarray(d.x), jnp.asarray(d.weights))
    for name, one, want in zip(
        ("tokens", "group_sizes", "dropped"),
        (got[0], got[2], got[3]),
        (r.tokens, r.group_sizes, r.dropped),
        strict=True,
    ):
        np.testing.assert_array_equal(one, want, f"{name} of {d}")
    for name, one, want in zip(
        ("weights", "combined", "dx", "dweights"),
        (got[1], *got[4:]),
        (r.weights, out, *gradients),
        strict=True,
    ):
        exact = name == "weights"
        tolerance = 1e-6 if exact else TOLERANCE[str(d.case.dtype)]
        want = np.asarray(want, np.float32)
        scale = 1 if exact else max(1.0, np.abs(want).max())
        np.testing.assert_allclose(
            one.astype(np.float32), want, rtol=tolerance, atol=tolerance * scale, err_msg=name
        )


class RandomTest(parameterized.TestCase):
    @parameterized.parameters(range(6))
    def test_agrees_with_the_oracle(self, seed):
        check(seed)


if __name__ == "__main__":
    absltest.main()
