"""Random configurations, forward and backward, against the oracle: see `draw` for what is drawn.

JAX_FABRIC_SEEDS=17 pytest tests/moe_random_test.py runs one again; so does a range, FIRST-END.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from moe_testing import Case, by_rank, context, run, straight_through

import jax_fabric as jf
from jax_fabric.testing import oracle, routing

TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}

# Each compiles programs of its own, for seconds.
SEEDS = 6
SOAK_SEEDS = 200

REMAT: dict[str, Callable[[Any], Any]] = {
    "none": lambda f: f,
    "all": jax.checkpoint,
    "save_exchanges": functools.partial(jax.checkpoint, policy=jf.moe.save_exchanges()),
}


def seeds() -> range:
    """Of this run. Every fabric checks both variables (docs/configuration.md), this only reads."""
    soak = os.environ.get("JAX_FABRIC_SOAK") == "1"
    given = os.environ.get("JAX_FABRIC_SEEDS")
    if not given:
        return range(SOAK_SEEDS if soak else SEEDS)
    first, _, end = given.partition("-")
    # Ranges are made for tests of which a seed takes milliseconds.
    return range(int(first), min(int(end or int(first) + 1), int(first) + SOAK_SEEDS))


@dataclasses.dataclass(frozen=True)
class Draw:
    """One configuration with its inputs.

    Attributes:
      options: of ExpertParallel.
      halves: of "dispatch" and "combine", those that are made in two halves.
      channels: of dispatch and of combine.
      remat: a key of REMAT.
    """

    case: Case
    options: dict[str, Any]
    x: np.ndarray
    experts: np.ndarray
    weights: np.ndarray
    weighted: bool
    zero_padding: bool
    halves: tuple[str, ...]
    channels: tuple[int, int]
    remat: str

    @property
    def tokens_dtype(self) -> Any:
        """Of what experts get."""
        return jnp.dtype(self.options.get("tokens_dtype", self.case.dtype))

    @property
    def tolerance(self) -> float:
        """Of sums of rows."""
        return max(TOLERANCE[str(each)] for each in (self.case.dtype, self.tokens_dtype))


def draw(seed: int) -> Draw:
    rng = np.random.default_rng(seed)
    experts = int(rng.integers(1, 18))
    dtype = str(rng.choice(list(TOLERANCE)))
    quantised = rng.random() < 0.4
    case = Case(
        ranks=int(rng.integers(1, 9)),
        tokens=int(rng.integers(1, 49)),
        experts=experts,
        top_k=int(rng.integers(1, min(experts, 6) + 1)),
        # With several blocks of a scale each, the last one of any length.
        hidden=int(rng.integers(1, 400 if quantised else 140)),
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
    channels = int(rng.integers(1, 4))
    options = dict(
        max_tokens=max_tokens,
        private_tokens=int(rng.integers(1, max_tokens + 1)) if rng.random() < 0.7 else None,
        combine_dtype="float32" if rng.random() < 0.3 else None,
        channels=channels,
    )
    if rng.random() < 0.3:
        options |= dict(capacity=int(rng.integers(1, 3 * case.tokens)), on_overflow="drop")
    if quantised:
        options |= dict(
            dispatch_dtype=jnp.float8_e4m3fn, tokens_dtype=str(rng.choice(list(TOLERANCE)))
        )
    halves = tuple(each for each in ("dispatch", "combine") if rng.random() < 0.4)
    return Draw(
        case,
        options,
        x,
        ids,
        weights,
        weighted=rng.random() < 0.7,
        zero_padding=rng.random() < 0.5,
        halves=halves,
        channels=(int(rng.integers(channels)), int(rng.integers(channels))),
        # Made once more, an exchange might be under way together with itself, on one channel.
        remat=str(rng.choice(list(REMAT))) if not halves else "none",
    )


def results(layer: Any, x: Any, weights: Any, cotangent: Any) -> Any:
    """What a layer of (x, weights) gives, (dispatched, combined), and its gradients in both."""

    def loss(x, weights):
        r, out = layer(x, weights)
        return (out.astype(jnp.float32) * cotangent).sum(), (r, out)

    gradients, found = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, weights)
    return found, gradients


def our_layer(d: Draw, moe: jf.moe.ExpertParallel, experts: Any, x: Any, weights: Any) -> Any:
    to, back = d.channels
    if "dispatch" in d.halves:
        pending = moe.dispatch_start(x, experts, weights, channel=to)
        r = moe.dispatch_done(pending, overlap=jnp.sin(x), zero_padding=d.zero_padding)
    else:
        r = moe.dispatch(x, experts, weights, channel=to, zero_padding=d.zero_padding)
    y = (r.tokens * 1.5).astype(d.case.dtype)
    if "combine" in d.halves:
        pending = moe.combine_start(y, r, weighted=d.weighted, channel=back)
        return r, moe.combine_done(pending, overlap=jnp.sin(x))
    return r, moe.combine(y, r, weighted=d.weighted, channel=back)


def oracle_layer(d: Draw, capacity: int, x: Any, weights: Any) -> Any:
    if "dispatch_dtype" in d.options:
        x = straight_through(x, d.tokens_dtype)
    r = oracle.dispatch(x, d.experts, weights, num_experts=d.case.experts, capacity=capacity)
    out = oracle.combine(
        (r.tokens * 1.5).astype(d.case.dtype),
        r,
        tokens=d.case.tokens,
        weighted=d.weighted,
        combine_dtype=d.options["combine_dtype"],
    )
    return r, out


def ours(d: Draw, cotangent: np.ndarray) -> tuple[tuple[np.ndarray, ...], int]:
    """Results as in `check`, and the capacity."""
    with context(d.case, **d.options) as (mesh, moe):

        def layer(x, experts, weights, cotangent):
            remat = REMAT[d.remat](functools.partial(our_layer, d, moe, experts))
            (r, out), gradients = results(remat, x, weights, cotangent)
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
        return results(functools.partial(oracle_layer, d, capacity), x, weights, cotangent)

    (r, out), gradients = reference(jnp.asarray(d.x), jnp.asarray(d.weights))
    again = f"JAX_FABRIC_SEEDS={seed}"
    for name, one, want in zip(
        ("tokens", "group_sizes", "dropped"),
        (got[0], got[2], got[3]),
        (r.tokens, r.group_sizes, r.dropped),
        strict=True,
    ):
        np.testing.assert_array_equal(one, want, f"{name}, {again}: {d}")
    for name, one, want in zip(
        ("weights", "combined", "dx", "dweights"),
        (got[1], *got[4:]),
        (r.weights, out, *gradients),
        strict=True,
    ):
        exact = name == "weights"
        tolerance = 1e-6 if exact else d.tolerance
        want = np.asarray(want, np.float32)
        scale = 1 if exact else max(1.0, np.abs(want).max())
        np.testing.assert_allclose(
            one.astype(np.float32),
            want,
            rtol=tolerance,
            atol=tolerance * scale,
            err_msg=f"{name}, {again}: {d}",
        )


class RandomTest(parameterized.TestCase):
    @parameterized.parameters(seeds())
    def test_agrees_with_the_oracle(self, seed):
        check(seed)


if __name__ == "__main__":
    absltest.main()
