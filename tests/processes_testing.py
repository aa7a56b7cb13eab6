"""Ranks in several processes: inputs with exact results, and a fabric over all devices."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fabric as jf
from jax_fabric.testing import oracle, routing

# Compiling is what takes the time here.
FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

TOKENS, TOP_K, HIDDEN = 6, 2, 16
REPEATS = 20  # of calls that XLA may start in any order
FEW = 5
TIMEOUT_S = 20.0


class Inputs:
    """Rows, routes and weights whose sums and products are exact: results are compared bitwise."""

    def __init__(
        self, ranks: int, *, kind: str = "uniform", dtype: Any = jnp.float32, seed: int = 0
    ):
        rng = np.random.default_rng(seed)
        self.ranks = ranks
        self.experts_in_all = 2 * ranks + 1
        routed = routing.generate(
            kind,
            ranks=ranks,
            tokens=TOKENS,
            experts=self.experts_in_all,
            top_k=TOP_K,
            seed=seed,
        )
        self.x = np.asarray(rng.integers(-8, 9, (ranks, TOKENS, HIDDEN)), jnp.dtype(dtype))
        self.experts = routed.experts
        # Quarters and halves.
        self.weights = (2.0 ** -rng.integers(1, 3, routed.weights.shape)).astype(np.float32)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.x, self.experts, self.weights

    def layers(self, *scales: float) -> np.ndarray:
        """What `layer` gives, once for each scale: every row times a factor of its own."""
        experts_per_rank = -(-self.experts_in_all // self.ranks)
        factor = (self.weights * 2.0 ** (self.experts // experts_per_rank % 2)).sum(-1)
        return np.asarray(
            self.x * (np.prod(scales) * factor[..., None] ** len(scales)), self.x.dtype
        )


def layer(moe: jf.moe.ExpertParallel, x: Any, e: Any, w: Any, scale: Any, **options: Any) -> Any:
    """Rows double on odd ranks, so that it matters where they go."""
    r = moe.dispatch(x, e, w, **options)
    scale = scale * (1 + lax.axis_index("ep") % 2)
    return moe.combine(r.tokens * scale.astype(r.tokens.dtype), r, **options)


# What the oracle says. The test's own process asks it, once for all: its compilation takes long.


@dataclasses.dataclass(frozen=True)
class Forward:
    """A dispatch, and what combine gives for twice its rows, weighted and not."""

    tokens: np.ndarray
    weights: np.ndarray
    group_sizes: np.ndarray
    out: np.ndarray
    plain: np.ndarray


@dataclasses.dataclass(frozen=True)
class Expected:
    forward: tuple[Forward, ...]
    gradients: tuple[np.ndarray, np.ndarray]


def forward_inputs(count: int) -> tuple[Inputs, ...]:
    return (
        Inputs(count, kind="holes"),
        Inputs(count, kind="one_rank", dtype=jnp.bfloat16, seed=1),
    )


def gradient_inputs(count: int) -> tuple[Inputs, np.ndarray]:
    inputs = Inputs(count, kind="duplicates", seed=2)
    return inputs, np.random.default_rng(2).integers(-2, 3, inputs.x.shape).astype(np.float32)


def gradient_of(of_layer: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x, e, w, c: (of_layer(x, e, w) * c).sum(), argnums=(0, 2))


def expected(count: int) -> Expected:
    """For `count` ranks."""
    forwards = []
    for inputs in forward_inputs(count):
        x, e, w = map(jnp.asarray, inputs.arrays())
        r = oracle.dispatch(x, e, w, num_experts=inputs.experts_in_all)
        out, plain = (
            oracle.combine(2 * r.tokens, r, tokens=TOKENS, weighted=weighted)
            for weighted in (True, False)
        )
        forwards.append(Forward(*map(np.asarray, (r.tokens, r.weights, r.group_sizes, out, plain))))
    inputs, c = gradient_inputs(count)

    def square(x, e, w):
        r = oracle.dispatch(x, e, w, num_experts=inputs.experts_in_all)
        return oracle.combine(r.tokens * r.tokens, r, tokens=TOKENS)

    gradients = jax.jit(gradient_of(square))(*inputs.arrays(), c)
    return Expected(tuple(forwards), tuple(map(np.asarray, gradients)))


class Ranks:
    """A fabric over all devices, with what the checks do on it."""

    def __init__(self, mesh: jax.sharding.Mesh, moe: jf.moe.ExpertParallel, spec: P):
        self.mesh = mesh
        self.moe = moe
        self.spec = spec

    def place(self, array: np.ndarray) -> jax.Array:
        """[N, T, ...], equal in all processes, to each rank's part on its device."""
        flat = np.asarray(array).reshape(-1, *array.shape[2:])
        sharding = NamedSharding(self.mesh, self.spec)
        return jax.make_array_from_callback(flat.shape, sharding, lambda index: flat[index])

    def jit(self, function: Callable[..., Any], *, check_vma: bool = False) -> Callable[..., Any]:
        return jax.jit(
            jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=self.spec,
                out_specs=self.spec,
                check_vma=check_vma,
            )
        )

    def run(self, function: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> Any:
        return self.jit(function, **options)(*map(self.place, arrays))

    def assert_equal(self, got: jax.Array, want: Any, message: str = "") -> None:
        """Bitwise, what this process holds of it; `want` is [N, T, ...]."""
        want = np.asarray(want)
        want = want.reshape(-1, *want.shape[2:])
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(
                np.asarray(shard.data), want[shard.index], err_msg=f"{message} {shard.device}"
            )


@contextlib.contextmanager
def ranks(
    inputs: Inputs,
    mesh: jax.sharding.Mesh | None = None,
    axes: Sequence[str] = ("ep",),
    **options: Any,
) -> Iterator[Ranks]:
    mesh = jax.make_mesh((inputs.ranks,), ("ep",)) if mesh is None else mesh
    with jf.Fabric(mesh, timeout_s=TIMEOUT_S) as fabric:
        arguments = dict(
            axis_name="ep",
            num_experts=inputs.experts_in_all,
            top_k=TOP_K,
            max_tokens=TOKENS,
            hidden=HIDDEN,
            dtype=inputs.x.dtype,
        )
        moe = jf.moe.ExpertParallel(fabric, **(arguments | options))
        yield Ranks(mesh, moe, P(tuple(axes)))


def world() -> int:
    return len(jax.devices())
