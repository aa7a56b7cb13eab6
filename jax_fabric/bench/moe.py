"""``jax-fabric bench moe``: dispatch and combine beside the same exchange by other means."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from jax_fabric import Fabric
from jax_fabric.bench import empty_call, exchange, mpi_launch
from jax_fabric.bench.config import MoeBenchConfig
from jax_fabric.bench.exchange import OURS
from jax_fabric.bench.interleave import Contender, interleave
from jax_fabric.bench.memcpy import Memcpy
from jax_fabric.bench.report import Report
from jax_fabric.bench.rows import OF_THE_PEER, Row, row, write_json
from jax_fabric.testing import environment, launch

_BENCH = "moe"
_LAUNCH_TIMEOUT_S = 540.0
_TIME = "dispatch + combine"
_EMPTY = "empty program"
_IN_CACHE, _BEYOND_CACHE = "memcpy in cache", "memcpy beyond cache"
_SMALL_ROUTINGS = 16


def main(config: MoeBenchConfig, json: Path | None, environments: Path | None) -> int:
    """Runs the benchmark in this process, or in as many as `config` says, and shows the rows.

    Args:
      config: what to run.
      json: a file for the rows.
      environments: the folder where ``benchmarks/peers/setup`` made the environments of peers.

    Returns:
      0, or 1 if a contender failed or has another result.
    """
    report = Report()
    report.configuration(config)
    before = os.getloadavg()[0]
    try:
        rows = _run_in_processes(config, environments)
    except (exchange.WrongResult, launch.LaunchError, mpi_launch.MpiError) as error:
        print(error)
        return 1
    rows.append(
        row(_BENCH, "the machine", "load average of 1 min", "threads", [before, os.getloadavg()[0]])
    )
    report.rows(rows)
    if json:
        write_json(json, rows)
    return 0


def _run_in_processes(config: MoeBenchConfig, environments: Path | None) -> list[Row]:
    if config.processes == 1:
        environment.prepare_cpu(config.ranks)
        return run(config)
    if "mpi4jax" in config.peers:
        # All contenders in the processes that mpiexec starts, or they could not take turns.
        return mpi_launch.run(config, environments, timeout_s=_LAUNCH_TIMEOUT_S)
    results = launch.run(
        "jax_fabric.bench.moe:run",
        config,
        processes=config.processes,
        local_devices=config.local_ranks,
        timeout_s=_LAUNCH_TIMEOUT_S,
        share_stdout=0,
    )
    return results[0].value


def run(config: MoeBenchConfig) -> list[Row]:
    """Runs this process's part.

    Returns:
      The rows, the same in all processes.

    Raises:
      WrongResult: a peer has another result than jax_fabric.
    """
    report = Report(silent=jax.process_index() != 0)
    mesh = jax.make_mesh((config.ranks,), (exchange.AXIS,))
    alone = config.processes == 1
    with (
        Fabric(mesh, timeout_s=config.timeout_s) as fabric,
        report.progress(config.repetitions + 2 + alone) as advance,
    ):
        rows = _measure_exchange(config, mesh, fabric, advance)
        advance()
        rows += _measure_overhead(config, mesh, fabric)
        advance()
        if alone:
            rows += _measure_empty_dispatch(config)
            advance()
    return rows


def _measure_exchange(
    config: MoeBenchConfig, mesh: jax.sharding.Mesh, fabric: Fabric, advance: Callable[[], None]
) -> list[Row]:
    operands = exchange.make_operands(config, mesh, 2 * config.repetitions)
    context = exchange.expert_parallel(config, fabric)
    program = exchange.over_ranks(mesh, exchange.round_trip(context))
    ours = exchange.contender(OURS, program, operands)
    peers = exchange.peers(config, mesh, operands)
    exchange.check(config, ours, peers)

    rows_received = exchange.over_ranks(
        mesh, lambda *arguments: context.dispatch(*arguments).routes.received()
    )
    moved = _sum(rows_received(*operands.of_call(0)))
    needed = exchange.rows_needed(config, operands.experts[0])
    memcpy = Memcpy(needed * config.row_bytes // config.processes, config.processes)
    floors = [
        Contender(_IN_CACHE, memcpy.in_cache),
        Contender(_BEYOND_CACHE, memcpy.beyond_cache),
    ]
    times = interleave([ours, *peers, *floors], config.repetitions, advance)
    memcpy.close()
    return [
        *_time_rows(config.case, _TIME, "ms", times),
        *_byte_rows(config, moved, needed),
    ]


def _measure_overhead(config: MoeBenchConfig, mesh: jax.sharding.Mesh, fabric: Fabric) -> list[Row]:
    """One token of 8 elements on each rank: what a call costs besides its bytes."""
    small = dataclasses.replace(config, tokens=1, hidden=8, repetitions=config.small_repetitions)
    operands = exchange.make_operands(small, mesh, _SMALL_ROUTINGS)
    context = exchange.expert_parallel(small, fabric)
    contenders = [
        exchange.contender(OURS, exchange.over_ranks(mesh, exchange.round_trip(context)), operands),
        exchange.contender(
            _EMPTY, exchange.over_ranks(mesh, lambda x, experts, weights: x + 1), operands
        ),
        *(exchange.peers(small, mesh, operands) if config.small_peers else ()),
    ]
    times = interleave(contenders, small.repetitions)
    return _time_rows(small.case, f"{_TIME}, few bytes", "us", times)


def _measure_empty_dispatch(config: MoeBenchConfig) -> list[Row]:
    once, many = empty_call.measure(config.small_repetitions, config.timeout_s)
    case = "1 rank, 1 token that no expert wants"
    return [
        *_time_rows(case, "a program of one dispatch", "us", once),
        *_time_rows(case, f"one of {empty_call.CALLS} dispatches in a row", "us", many),
    ]


def _time_rows(case: str, metric: str, unit: str, times: dict[str, np.ndarray]) -> list[Row]:
    """Ours beside each contender, and what the contender took itself."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    ours = times[OURS] * scale
    rows = []
    for peer, seconds in times.items():
        if peer == OURS:
            continue
        theirs = seconds * scale
        rows.append(row(_BENCH, case, metric, unit, ours, peer=peer, ratios=theirs / ours))
        rows.append(row(_BENCH, case, metric + OF_THE_PEER, unit, theirs, peer=peer))
    return rows


def _byte_rows(config: MoeBenchConfig, moved: int, needed: int) -> list[Row]:
    """Bytes of `moved` rows in both directions: combine brings back as many as dispatch sent.

    The lower bound is each token once for each rank that has an expert of it.
    """
    both_ways = config.dispatch_row_bytes + config.row_bytes
    mib = [moved * both_ways / 2**20]
    blocks = config.ranks**2 * config.tokens * 2 * config.row_bytes
    return [
        row(_BENCH, config.case, "bytes of rows", "MiB", mib, peer=peer, ratios=[r])
        for peer, r in (
            ("lower bound", needed / moved),
            ("blocks of fixed size", blocks / (moved * both_ways)),
        )
    ]


def _sum(array: jax.Array) -> int:
    """Over all processes."""
    local = sum(int(np.asarray(shard.data).sum()) for shard in array.addressable_shards)
    if jax.process_count() == 1:
        return local
    return int(np.sum(multihost_utils.process_allgather(np.array([local], np.int32))))


def available_peers(processes: int, environments: Path | None) -> Sequence[str]:
    """The peers that can run here, for who asks for none in particular."""
    if processes == 1:
        return ("plain_jax",)
    return ("gloo", "mpi4jax") if mpi_launch.available(environments) else ("gloo",)
