"""``jax-fabric simulate moe``: runs the model, beside the paper's figures where there are some."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from jax_fabric.bench.rows import OF_THE_PEER, Row, row, write_json
from jax_fabric.simulate import model, plot
from jax_fabric.simulate.config import MoeSimulationConfig, Protocol
from jax_fabric.simulate.constants import (
    FITTED_RANKS,
    NICS,
    PAPER_DECODE_US,
    PAPER_PREFILL_TOKENS,
    PAPER_PREFILL_US,
    PAPER_TOKENS,
    NicConstants,
)
from jax_fabric.simulate.report import Report, markdown

CALLS = ("dispatch", "combine")
PROTOCOLS: tuple[Protocol, ...] = ("two_phases", "rounds", "channel")
#: P of the two-phase protocol that :func:`sweep` runs.
SWEPT_PRIVATE_TOKENS = (1, 4, 8, 16, 24, 32, 64, 128)
PEER_PAPER = "the paper"
PEER_TWO_PHASES = "two phases (model)"
BENCH = "simulate moe"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A run of every protocol on one NIC with so many ranks.

    Attributes:
      nic: its constants.
      ranks: N.
      tokens: T.
      times: by protocol; those that cannot be run are missing.
      paper_us: dispatch and combine as the paper has them, or None.
    """

    nic: NicConstants
    ranks: int
    tokens: int
    times: dict[Protocol, model.Times]
    paper_us: tuple[float, float] | None

    @property
    def role(self) -> str:
        """What the fit knew of it."""
        if self.paper_us is None:
            return "predicted"
        seen = self.tokens == PAPER_TOKENS and self.ranks in FITTED_RANKS
        return "fitted" if seen else "checked"


@dataclasses.dataclass(frozen=True)
class Output:
    """Where a run is written to, besides the terminal."""

    json: Path | None = None
    markdown: Path | None = None
    plot: Path | None = None


def main(config: MoeSimulationConfig, output: Output, *, sweep_ranks: int | None) -> int:
    """Runs everything, shows it and writes it; returns the exit code."""
    report = Report()
    report.heading(config)
    swept: list[Row] = []
    steps = len(config.nics) * len(config.ranks) * len(PROTOCOLS)
    if sweep_ranks is not None:
        steps += len(config.nics) * len(SWEPT_PRIVATE_TOKENS)
    with report.progress(steps) as advance:
        outcomes = list(run_all(config, advance))
        if sweep_ranks is not None:
            swept = sweep(config, sweep_ranks, advance)
    report.outcomes(outcomes)
    if swept:
        report.sweep(swept)
    report.caveats(outcomes)
    rows = [each for outcome in outcomes for each in outcome_rows(config, outcome)] + swept
    if output.json:
        write_json(output.json, rows)
    if output.markdown:
        output.markdown.write_text(markdown(config, outcomes, swept))
    if output.plot:
        plot.write(output.plot, config, outcomes)
    return 0


def run_all(config: MoeSimulationConfig, advance: Callable[[], None]) -> Iterator[Outcome]:
    """Runs every protocol on every NIC with every number of ranks."""
    for name in config.nics:
        for ranks in config.ranks:
            times = {}
            for protocol in PROTOCOLS:
                if model.runs(protocol, ranks):
                    times[protocol] = model.run(config, protocol, NICS[name], ranks)
                advance()
            paper_us = paper_figures(config, name, ranks)
            yield Outcome(NICS[name], ranks, config.tokens, times, paper_us)


def paper_figures(config: MoeSimulationConfig, nic: str, ranks: int) -> tuple[float, float] | None:
    """Returns dispatch and combine of the paper for a run of the same sizes, or None."""
    sizes = (config.hidden, config.top_k, config.experts, config.node_ranks)
    if sizes != (7168, 8, 256, 8):
        return None
    if config.tokens == PAPER_TOKENS:
        return PAPER_DECODE_US[nic].get(ranks)
    if config.tokens == PAPER_PREFILL_TOKENS:
        return PAPER_PREFILL_US[nic].get(ranks)
    return None


def sweep(config: MoeSimulationConfig, ranks: int, advance: Callable[[], None]) -> list[Row]:
    """Runs the two-phase protocol with other private tokens; returns the dispatches."""
    rows = []
    for name in config.nics:
        for private_tokens in SWEPT_PRIVATE_TOKENS:
            changed = dataclasses.replace(config, private_tokens=private_tokens)
            times = model.run(changed, "two_phases", NICS[name], ranks)
            metric = f"dispatch (model of two phases), P {private_tokens}"
            rows.append(row(BENCH, config.case(NICS[name], ranks), metric, "us", times.dispatch_us))
            advance()
    return rows


def outcome_rows(config: MoeSimulationConfig, outcome: Outcome) -> list[Row]:
    """Returns the rows of a run: the model beside the paper, and this library beside the model."""
    case = config.case(outcome.nic, outcome.ranks)
    rows = []
    for index, call in enumerate(CALLS):
        two_phases = outcome.times["two_phases"]
        values = (two_phases.dispatch_us, two_phases.combine_us)[index]
        p50 = two_phases.p50_us[index]
        metric = f"{call} (model of two phases)"
        if outcome.paper_us is None:
            rows.append(row(BENCH, case, metric, "us", values))
        else:
            paper = outcome.paper_us[index]
            rows.append(
                row(BENCH, case, metric, "us", values, peer=PEER_PAPER, ratios=[paper / p50])
            )
            rows.append(row(BENCH, case, metric + OF_THE_PEER, "us", [paper], peer=PEER_PAPER))
        for protocol, name in (("rounds", "jax_fabric's messages"), ("channel", "jax_fabric")):
            if protocol not in outcome.times:
                continue
            ours = outcome.times[protocol]
            mine = (ours.dispatch_us, ours.combine_us)[index]
            ratio = p50 / ours.p50_us[index]
            metric = f"{call} (model of {name})"
            rows.append(row(BENCH, case, metric, "us", mine, peer=PEER_TWO_PHASES, ratios=[ratio]))
    for protocol, times in outcome.times.items():
        rows.append(
            row(BENCH, case, f"bytes a rank sends ({protocol})", "MB", [times.wire_bytes * 1e-6])
        )
    return rows
