"""How long dispatch and combine take, and how many bytes they move."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jax_fabric.demo import checks, model, training
from jax_fabric.demo.config import DemoConfig
from jax_fabric.moe import ExpertParallel
from jax_fabric.testing import routing

_WARM_UP_CALLS = 3


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of a jitted call, from the call to its results being there, in seconds.

    Attributes:
      name: of the call.
      median: of all.
      fastest: of all.
      slowest: of all.
      calls: how many were timed.
    """

    name: str
    median: float
    fastest: float
    slowest: float
    calls: int


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Payload of one dispatch, over all ranks; combine brings back as much in its dtype.

    Attributes:
      rows_moved: rows that ranks received, by the routes that dispatch returned.
      rows_needed: the lower bound: each token once for each rank that has an expert of it.
      rows_of_collective: what blocks of fixed size need (``lax.all_to_all`` without drops).
      row_bytes: of a row.
    """

    rows_moved: int
    rows_needed: int
    rows_of_collective: int
    row_bytes: int


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured."""

    timings: tuple[Timing, ...]
    traffic: Traffic


def measure(config: DemoConfig, moe: ExpertParallel, trainer: training.Trainer) -> Measurement:
    """Times calls with uniform routing, each call with all ranks in step.

    Every process takes part; its times are those of its own ranks.
    """
    routed = routing.generate(
        "uniform",
        ranks=config.ranks,
        tokens=config.tokens,
        experts=config.experts,
        top_k=config.top_k,
        seed=config.seed,
    )
    spec = PartitionSpec(model.AXIS)

    def jit(function: Callable[..., Any]) -> Callable[..., Any]:
        mapped = jax.shard_map(function, mesh=trainer.mesh, in_specs=spec, out_specs=spec)
        return jax.jit(mapped)

    dispatch = jit(moe.dispatch)
    combine = jit(moe.combine)
    x = np.ones((config.ranks * config.tokens, config.hidden), jnp.dtype(config.dtype))
    experts, weights = (a.reshape(-1, config.top_k) for a in (routed.experts, routed.weights))
    operands = [trainer.place(array, spec) for array in (x, experts, weights)]

    result = jax.block_until_ready(dispatch(*operands))
    timings = (
        _time("dispatch", lambda: dispatch(*operands), config.repeats),
        _time("combine", lambda: combine(result.tokens, result), config.repeats),
    )
    return Measurement(timings, _traffic(config, result, routed.experts))


def _time(name: str, call: Callable[[], Any], repeats: int) -> Timing:
    """Times `repeats` calls after a few that are not counted (the first compiles)."""
    for _ in range(_WARM_UP_CALLS):
        jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - begin)
    return Timing(name, statistics.median(seconds), min(seconds), max(seconds), repeats)


def _traffic(config: DemoConfig, result: Any, experts: np.ndarray) -> Traffic:
    """Counts rows; experts int32[N, T, K] name each expert of a token once."""
    ranks = experts // config.experts_per_rank
    needed = sum(len(np.unique(of_token)) for of_token in ranks.reshape(-1, config.top_k))
    moved = np.maximum(checks.gather(result.routes.rows), 0).sum()
    return Traffic(
        rows_moved=int(moved),
        rows_needed=int(needed),
        rows_of_collective=config.ranks * config.ranks * config.tokens,
        row_bytes=config.hidden * jnp.dtype(config.dtype).itemsize,
    )
