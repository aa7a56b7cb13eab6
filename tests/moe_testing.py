"""What the MoE tests share: a context on a mesh, and rank-major views of sharded arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fabric as jf
from jax_fabric.testing import oracle, routing


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes of one test."""

    ranks: int = 4
    tokens: int = 16
    experts: int = 8
    top_k: int = 2
    hidden: int = 32
    dtype: Any = jnp.float32
    routing: str = "uniform"
    seed: int = 0

    def inputs(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x [N, T, H], experts int32[N, T, K], weights float32[N, T, K]."""
        rng = np.random.default_rng(self.seed)
        routes = routing.generate(
            self.routing,
            ranks=self.ranks,
            tokens=self.tokens,
            experts=self.experts,
            top_k=self.top_k,
            seed=self.seed,
        )
        x = rng.standard_normal((self.ranks, self.tokens, self.hidden)).astype(np.float32)
        return jnp.asarray(x, self.dtype), jnp.asarray(routes.experts), jnp.asarray(routes.weights)


@contextlib.contextmanager
def context(
    case: Case, **options: Any
) -> Iterator[tuple[jax.sharding.Mesh, jf.moe.ExpertParallel]]:
    """A fabric over the first devices, and an expert-parallel context on it."""
    with contexts(case, {}, **options) as (mesh, (moe,)):
        yield mesh, moe


@contextlib.contextmanager
def contexts(
    case: Case, *variants: dict[str, Any], **options: Any
) -> Iterator[tuple[jax.sharding.Mesh, list[jf.moe.ExpertParallel]]]:
    """The same with several contexts, which differ in what each of the variants says."""
    mesh = jax.make_mesh((case.ranks,), ("ep",), devices=jax.devices()[: case.ranks])
    with jf.Fabric(mesh, timeout_s=options.pop("timeout_s", 60.0)) as fabric:
        arguments = dict(
            axis_name="ep",
            num_experts=case.experts,
            top_k=case.top_k,
            max_tokens=max(1, case.tokens),
            hidden=case.hidden,
            dtype=case.dtype,
        )
        yield (
            mesh,
            [jf.moe.ExpertParallel(fabric, **(arguments | options | each)) for each in variants],
        )


def flat(value: jax.Array, mesh: jax.sharding.Mesh) -> jax.Array:
    """[N, T, ...] -> [N * T, ...], each rank's part on its device."""
    value = value.reshape(-1, *value.shape[2:])
    return jax.device_put(value, NamedSharding(mesh, P("ep")))


def on_ranks(
    function: Any, mesh: jax.sharding.Mesh, arguments: int, *, check_vma: bool = False
) -> Any:
    """Jitted shard_map in which every operand and result is split over the ranks."""
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=(P("ep"),) * arguments, out_specs=P("ep"), check_vma=check_vma
    )
    return jax.jit(mapped)


def by_rank(value: jax.Array, ranks: int) -> np.ndarray:
    """[N * T, ...] -> [N, T, ...] as NumPy."""
    array = np.asarray(value)
    return array.reshape(ranks, -1, *array.shape[1:])


def run(function: Any, mesh: jax.sharding.Mesh, *operands: jax.Array) -> Any:
    """Runs it on the ranks' parts [N, T, ...] and waits: what runs when a fabric closes is
    cancelled."""
    out = on_ranks(function, mesh, len(operands))(*(flat(each, mesh) for each in operands))
    return jax.block_until_ready(out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def straight_through(x: jax.Array, dtype: Any) -> jax.Array:
    """x as it is after a journey in float8_e4m3fn; gradients as if it had been moved only."""
    return oracle.dequantise(*oracle.quantise(x), dtype)


straight_through.defvjp(
    lambda x, dtype: (straight_through(x, dtype), jnp.zeros((0,), x.dtype)),
    lambda dtype, x, g: (g.astype(x.dtype),),
)
