"""The contenders: dispatch and combine around an expert that does nothing, by every means."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_fabric import Fabric, moe
from jax_fabric.bench.config import MoeBenchConfig
from jax_fabric.bench.interleave import Contender
from jax_fabric.bench.peers import lean_jax, plain_jax
from jax_fabric.testing import routing

AXIS = "ep"
OURS = "jax_fabric"
_LEAN = "_lean"
# Rows to send: enough that no call meets those of the one before.
_ROW_SETS = 2

# Largest difference from the peer, as a share of the largest value: the lean peer sums a rank's
# weights before it multiplies, so results may round to the other side.
_TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2, "float8_e4m3fn": 7e-2}

RoundTrip = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class WrongResult(RuntimeError):
    """A contender's result is not that of jax_fabric."""


@dataclasses.dataclass(frozen=True)
class Operands:
    """What all contenders get: for each call other routings, and rows in turn.

    Attributes:
      xs: the rows; call i sends ``xs[i % len(xs)]``.
      routings: (experts, weights) of each call.
      experts: int32[calls, N, T, K], the same on the host.
    """

    xs: list[jax.Array]
    routings: list[tuple[jax.Array, jax.Array]]
    experts: np.ndarray

    def of_call(self, number: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns x, experts and weights."""
        return self.xs[number % len(self.xs)], *self.routings[number % len(self.routings)]

    def local(self) -> Operands:
        """The same as arrays of this process's only device."""
        one = lambda array: array.addressable_shards[0].data  # noqa: E731
        routings = [(one(experts), one(weights)) for experts, weights in self.routings]
        return Operands([one(x) for x in self.xs], routings, self.experts)


def make_operands(config: MoeBenchConfig, mesh: Mesh, calls: int) -> Operands:
    """Makes the operands of `calls` calls."""
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    rows = config.ranks * config.tokens

    def place(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def x(number: int) -> np.ndarray:
        rng = np.random.default_rng((config.seed, number))
        values = rng.standard_normal((rows, config.hidden), np.float32)
        return values.astype(jnp.dtype(config.dtype))

    sizes = dict(
        ranks=config.ranks, tokens=config.tokens, experts=config.experts, top_k=config.top_k
    )
    routed = [
        routing.generate("uniform", **sizes, seed=config.seed * 1_000_003 + i) for i in range(calls)
    ]
    flat = [(r.experts.reshape(rows, -1), r.weights.reshape(rows, -1)) for r in routed]
    return Operands(
        xs=[place(x(number)) for number in range(_ROW_SETS)],
        routings=[(place(experts), place(weights)) for experts, weights in flat],
        experts=np.stack([r.experts for r in routed]),
    )


def expert_parallel(config: MoeBenchConfig, fabric: Fabric) -> moe.ExpertParallel:
    """Makes the context that is measured."""
    return moe.ExpertParallel(
        fabric,
        axis_name=AXIS,
        num_experts=config.experts,
        top_k=config.top_k,
        max_tokens=config.tokens,
        private_tokens=config.private_tokens,
        hidden=config.hidden,
        dtype=jnp.dtype(config.dtype),
        dispatch_dtype=config.dispatch_dtype,
        tokens_dtype=config.dtype,
    )


def round_trip(context: Any) -> RoundTrip:
    """The program that is measured: to the experts and back."""

    def function(x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        dispatched = context.dispatch(x, experts, weights)
        return context.combine(dispatched.tokens, dispatched)

    return function


def over_ranks(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """Jits a function of each rank's part."""
    spec = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))


def contender(name: str, program: Callable[..., Any], operands: Operands) -> Contender:
    """A program that is called with the operands of each call."""
    return Contender(name, lambda number: program(*operands.of_call(number)))


def peers(config: MoeBenchConfig, mesh: Mesh, operands: Operands) -> list[Contender]:
    """The contenders of all peers of the configuration, two of each."""
    found = []
    for peer in config.peers:
        if peer == "mpi4jax":
            from jax_fabric.bench.peers import mpi

            if mpi.rank() != jax.process_index():
                raise RuntimeError("ranks of MPI and of jax.distributed differ")
            all_to_all, run, arguments = mpi.all_to_all, jax.jit, operands.local()
        else:
            all_to_all, run, arguments = None, functools.partial(over_ranks, mesh), operands
        plain = plain_jax.PlainExpertParallel(
            num_ranks=config.ranks,
            axis_name=AXIS,
            num_experts=config.experts,
            top_k=config.top_k,
            max_tokens=config.tokens,
            all_to_all=all_to_all,
        )
        lean = lean_jax.LeanExpertParallel(config.ranks, AXIS, config.experts, all_to_all)
        found.append(contender(peer, run(round_trip(plain)), arguments))
        found.append(contender(peer + _LEAN, run(round_trip(lean)), arguments))
    return found


def check(config: MoeBenchConfig, ours: Contender, others: Sequence[Contender]) -> None:
    """Compares what this process's ranks get for the first call.

    Raises:
      WrongResult: a peer has another result.
    """
    tolerance = _TOLERANCES[config.dispatch_dtype or config.dtype]
    got = _local_values(ours.call(0))
    for other in others:
        want = _local_values(other.call(0))
        error = float(np.abs(got - want).max()) / (float(np.abs(want).max()) or 1.0)
        if not error <= tolerance:
            raise WrongResult(
                f"{ours.name} and {other.name} differ by {error:.3g} of the largest value; "
                f"{tolerance:.3g} is accepted"
            )


def _local_values(array: jax.Array) -> np.ndarray:
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data, np.float32) for shard in shards])


def rows_needed(config: MoeBenchConfig, experts: np.ndarray) -> int:
    """The lower bound of rows: each token once for each rank with an expert of it.

    Args:
      config: of the run.
      experts: int32[N, T, K], each expert of a token once.
    """
    ranks = experts // -(-config.experts // config.ranks)
    return int(sum((ranks == rank).any(axis=-1).sum() for rank in range(config.ranks)))
