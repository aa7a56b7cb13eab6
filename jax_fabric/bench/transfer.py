"""``jax-fabric bench transfer``: the engine between two processes, beside memcpy and NIXL."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jax_fabric.bench.nixl import Nixl, NixlError
from jax_fabric.bench.report import Report
from jax_fabric.bench.rows import OF_THE_PEER, Row, row, write_json
from jax_fabric.bench.transfer_config import TransferBenchConfig
from jax_fabric.bench.transfer_sides import Measured

_BENCH = "transfer"
_LATENCY_CASE = "one way between two processes"
_SUBMIT_CASE = "from the call to the post"
# What one timed run moves: long enough for the clock, shorter than what others do to the machine.
_RUN_BYTES = 64 << 20
_SMALL_NBYTES = 64
# "RDMA Point-to-Point Communication for LLM Systems", arXiv 2510.27656: submit call, enqueued,
# taken by the worker, first post; microseconds, median.
_PAPER_CALL_US = 0.12
_PAPER_POSTED_US = 0.12 + 0.86 + 0.44

Contenders = dict[str, Callable[[], float]]


def main(config: TransferBenchConfig, json: Path | None, environments: Path | None) -> int:
    """Runs the benchmark and shows the rows.

    Args:
      config: what to run.
      json: a file for the rows.
      environments: the folder where ``benchmarks/peers/setup`` made the environments of peers.

    Returns:
      0, or 1 if a contender failed or moved wrong bytes.
    """
    report = Report()
    beside = ", ".join(("memcpy", *config.peers))
    report.heading("single and paged writes", f"2 processes, local domain; beside: {beside}")
    before = os.getloadavg()[0]
    try:
        with contextlib.ExitStack() as stack:
            measured = stack.enter_context(Measured(config))
            nixl = (
                stack.enter_context(Nixl(config, environments)) if "nixl" in config.peers else None
            )
            steps = len(config.write_mib) + 2 * len(config.page_kib) + 2
            advance = stack.enter_context(report.progress(steps))
            rows = run(config, measured, nixl, advance)
    except (NixlError, RuntimeError, TimeoutError) as error:
        print(error)
        return 1
    rows.append(
        row(_BENCH, "the machine", "load average of 1 min", "threads", [before, os.getloadavg()[0]])
    )
    report.rows(rows)
    if json:
        write_json(json, rows)
    return 0


def run(
    config: TransferBenchConfig,
    measured: Measured,
    nixl: Nixl | None,
    advance: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Measures everything.

    Args:
      config: what to run.
      measured: both sides of jax_fabric.
      nixl: the peer, or None.
      advance: called after each case.
    """
    rows = []
    for mib in config.write_mib:
        rows += _writes(config, measured, nixl, mib << 20)
        advance()
    for kib in config.page_kib:
        for batch_mib in (config.small_batch_mib, config.large_batch_mib):
            rows += _pages(config, measured, nixl, kib << 10, batch_mib << 20)
            advance()
    rows += _latencies(config, measured, nixl)
    advance()
    rows += _submissions(config, measured)
    advance()
    return rows


def _writes(
    config: TransferBenchConfig, measured: Measured, nixl: Nixl | None, nbytes: int
) -> list[Row]:
    count = max(4, _RUN_BYTES // nbytes)
    contenders: Contenders = {
        "": lambda: measured.writes_s(nbytes, count),
        "memcpy": lambda: measured.copies_s(nbytes, count),
    }
    if nixl is not None:
        contenders["NIXL"] = lambda: nixl.writes_s(nbytes, count)
    rates = {
        name: nbytes * count / seconds / 1e9
        for name, seconds in _in_turn(contenders, config.repetitions).items()
    }
    return _rate_rows(f"single writes of {nbytes >> 20} MiB", "rate", "GB/s", rates)


def _pages(
    config: TransferBenchConfig, measured: Measured, nixl: Nixl | None, nbytes: int, batch: int
) -> list[Row]:
    number = batch // nbytes
    order = np.random.default_rng(config.seed).permutation(number)
    measured.check_pages(nbytes, order)
    count = max(1, _RUN_BYTES // 4 // batch)
    contenders: Contenders = {
        "": lambda: measured.pages_s(nbytes, order, count),
        "memcpy": lambda: measured.copies_s(batch, count, in_place=True),
    }
    if nixl is not None:
        contenders["NIXL"] = lambda: nixl.pages_s(nbytes, order, count)
    rates = {
        name: number * count / seconds / 1e6
        for name, seconds in _in_turn(contenders, config.repetitions).items()
    }
    case = f"paged writes, {number} pages of {nbytes >> 10} KiB at random places"
    return _rate_rows(case, "pages", "million/s", rates)


def _latencies(config: TransferBenchConfig, measured: Measured, nixl: Nixl | None) -> list[Row]:
    """Half of a round trip; a value is the median of a run."""
    rounds = config.round_trips
    contenders: dict[str, Callable[[], list[float]]] = {
        "notify": lambda: measured.round_trips_s(0, rounds),
        "write": lambda: measured.round_trips_s(_SMALL_NBYTES, rounds),
        "python": lambda: measured.round_trips_from_python_s(_SMALL_NBYTES, max(1, rounds // 10)),
        "floor": lambda: measured.word_round_trips_s(rounds),
    }
    if nixl is not None:
        contenders["nixl_notify"] = lambda: nixl.round_trips_s(0, rounds)
        contenders["nixl_write"] = lambda: nixl.round_trips_s(_SMALL_NBYTES, rounds)
    medians = {
        name: (lambda call=call: statistics.median(call()) / 2 * 1e6)
        for name, call in contenders.items()
    }
    found = _in_turn(medians, config.repetitions)
    rows = []
    for ours, metric in (("notify", "immediate"), ("write", f"write of {_SMALL_NBYTES} bytes")):
        theirs = {"two processes on a shared word": "floor", "NIXL": f"nixl_{ours}"}
        for peer, key in theirs.items():
            if key in found:
                rows += _pair(_LATENCY_CASE, metric, "us", found[ours], peer, found[key])
    metric = f"write of {_SMALL_NBYTES} bytes, from Python"
    # NIXL's side is a loop in Python as well, over the bindings below its Python API.
    for peer, key in {"from worker to worker": "write", "NIXL": "nixl_write"}.items():
        if key in found:
            rows += _pair(_LATENCY_CASE, metric, "us", found["python"], peer, found[key])
    return rows


def _submissions(config: TransferBenchConfig, measured: Measured) -> list[Row]:
    """A value is a percentile of a run; small writes of the local domain end where they begin."""
    measured.submit_s(config.round_trips)  # warm
    runs = [measured.submit_s(config.round_trips) for _ in range(config.repetitions)]
    paper = "figures of the paper"
    rows = []
    for which, (metric, theirs) in enumerate(
        (("the call", _PAPER_CALL_US), ("until posted and completed", _PAPER_POSTED_US))
    ):
        p50, p99 = (
            np.array([np.percentile(run[which], percentile) * 1e6 for run in runs])
            for percentile in (50, 99)
        )
        rows += _pair(_SUBMIT_CASE, f"{metric}, p50", "us", p50, paper, np.full_like(p50, theirs))
        rows.append(row(_BENCH, _SUBMIT_CASE, f"{metric}, p99", "us", p99))
    return rows


def _in_turn(contenders: Contenders, repetitions: int) -> dict[str, np.ndarray]:
    """Runs each once untimed, then all in turn; what each returned."""
    for call in contenders.values():
        call()
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, call in contenders.items():
            values[name].append(call())
    return {name: np.array(each) for name, each in values.items()}


def _rate_rows(case: str, metric: str, unit: str, rates: dict[str, np.ndarray]) -> list[Row]:
    """Ours beside each contender; more is better."""
    ours = rates.pop("")
    rows = []
    for peer, theirs in rates.items():
        rows.append(row(_BENCH, case, metric, unit, ours, peer=peer, ratios=ours / theirs))
        rows.append(row(_BENCH, case, metric + OF_THE_PEER, unit, theirs, peer=peer))
    return rows


def _pair(
    case: str, metric: str, unit: str, ours: np.ndarray, peer: str, theirs: np.ndarray
) -> list[Row]:
    """Ours beside a peer; less is better."""
    return [
        row(_BENCH, case, metric, unit, ours, peer=peer, ratios=theirs / ours),
        row(_BENCH, case, metric + OF_THE_PEER, unit, theirs, peer=peer),
    ]
