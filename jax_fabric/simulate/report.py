"""What ``jax-fabric simulate`` shows on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jax_fabric.bench.rows import Row
from jax_fabric.simulate.config import MoeSimulationConfig
from jax_fabric.simulate.constants import NicConstants

if TYPE_CHECKING:
    from jax_fabric.simulate.moe import Outcome

WHAT_IT_IS = (
    "A model, not a measurement: engines and exchanges of this library, and the paper's protocol "
    "on the same engines, on a simulated network with a virtual clock. Latency and bandwidth of "
    "each NIC are fitted on the paper's EP16 and EP64; kernel times are the paper's."
)

#: Columns of the table of a NIC; all times are p50 in microseconds.
HEADINGS = (
    "EP",
    "call",
    "the paper",
    "model of its protocol",
    "model / paper",
    "",
    "model of jax_fabric's messages",
    "model of jax_fabric",
    "ranks run",
)


SWEEP_TITLE = "two phases: rows that go before the counts are known"


class Report:
    """Writes to the terminal."""

    def __init__(self) -> None:
        """Makes a report."""
        self._console = Console(highlight=False)

    def heading(self, config: MoeSimulationConfig) -> None:
        """Says what this is."""
        self._console.rule("[bold]jax_fabric: simulate moe", align="left")
        self._console.print(WHAT_IT_IS)
        self._console.print(sizes(config))

    @contextlib.contextmanager
    def progress(self, steps: int, text: str = "simulate") -> Iterator[Callable[[], None]]:
        """Shows a progress bar; gives a function to call after each step."""
        columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("", total=steps)
            yield lambda: progress.advance(task)

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Shows a table for each NIC."""
        for name in dict.fromkeys(outcome.nic.name for outcome in outcomes):
            mine = [outcome for outcome in outcomes if outcome.nic.name == name]
            table = Table(title=nic_title(mine[0].nic), title_justify="left")
            for heading in HEADINGS:
                justify = "left" if heading in ("call", "") else "right"
                table.add_column(heading, justify=justify, overflow="fold")
            for outcome in mine:
                for cells in outcome_cells(outcome):
                    table.add_row(*cells)
            self._console.print(table)

    def sweep(self, rows: Sequence[Row]) -> None:
        """Shows what private tokens do."""
        table = Table(title=SWEEP_TITLE, title_justify="left")
        for heading in ("case", "metric", "p50, us"):
            table.add_column(heading, justify="right" if heading == "p50, us" else "left")
        for each in rows:
            table.add_row(each.case, each.metric, f"{each.median:,.1f}")
        self._console.print(table)

    def caveats(self, outcomes: Sequence[Outcome]) -> None:
        """Says where the model is off, and what it leaves out."""
        off = [
            f"{outcome.nic.name} EP {outcome.ranks} {call} {100 * (ratio - 1):+.0f} %"
            for outcome in outcomes
            if outcome.paper_us is not None
            for call, ratio in zip(("dispatch", "combine"), paper_ratios(outcome), strict=True)
            if abs(ratio - 1) > 0.1
        ]
        if off:
            self._console.print(f"More than 10 % off the paper: {'; '.join(off)}.")
        self._console.print(
            "Left out: NVLink (the ranks of a node are taken to be through before the NIC is), "
            "other traffic, congestion inside the network, time-outs. docs/model.md says more."
        )

    def fitted(self, nic: NicConstants, errors: Sequence[float], ranks: Sequence[int]) -> None:
        """Shows what a fit has found."""
        self._console.print(
            f"[bold]{nic.name}[/bold]: latency_us={nic.latency_us:g}, "
            f"bytes_per_ns={nic.bytes_per_ns:g}"
        )
        for each, (dispatch, combine) in zip(ranks, _pairs(errors), strict=True):
            self._console.print(
                f"  EP {each}: dispatch {100 * dispatch:+.1f} %, combine {100 * combine:+.1f} % "
                "beside the paper"
            )


def nic_title(nic: NicConstants) -> str:
    """Returns the constants in words."""
    return (
        f"{nic.name}: latency {nic.latency_us:g} us, {nic.bytes_per_ns:g} GB/s each way, "
        f"{nic.post_us:.3f} us for each request, P {nic.private_tokens}; p50 in us"
    )


def paper_ratios(outcome: Outcome) -> tuple[float, ...]:
    """Returns model / paper of dispatch and combine, where the paper has figures."""
    if outcome.paper_us is None:
        return ()
    p50 = outcome.times["two_phases"].p50_us
    return tuple(mine / theirs for mine, theirs in zip(p50, outcome.paper_us, strict=True))


def outcome_cells(outcome: Outcome) -> list[tuple[str, ...]]:
    """Returns what people read of a run, as :data:`HEADINGS` say: dispatch, then combine."""
    lines = []
    for index, call in enumerate(("dispatch", "combine")):
        ratios = paper_ratios(outcome)
        p50 = {protocol: times.p50_us[index] for protocol, times in outcome.times.items()}
        lines.append(
            (
                str(outcome.ranks),
                call,
                f"{outcome.paper_us[index]:,.1f}" if outcome.paper_us else "",
                f"{p50['two_phases']:,.1f}",
                f"{ratios[index]:.2f}" if ratios else "",
                outcome.role,
                f"{p50['rounds']:,.1f}",
                f"{p50['channel']:,.1f}" if "channel" in p50 else "",
                str(outcome.times["two_phases"].representatives),
            )
        )
    return lines


def sizes(config: MoeSimulationConfig) -> str:
    """Returns what travels, in words."""
    slots = "" if config.slot_tokens is None else f", jax_fabric in rounds of {config.slot_tokens}"
    return (
        f"T {config.tokens}, H {config.hidden} (float8 with scales out, bfloat16 back), "
        f"K {config.top_k}, {config.node_ranks} ranks on a node{slots}"
    )


def markdown(config: MoeSimulationConfig, outcomes: Sequence[Outcome], swept: Sequence[Row]) -> str:
    """Returns the same tables for a document."""
    text = ["# jax-fabric simulate moe", "", WHAT_IT_IS, "", sizes(config), ""]
    for name in dict.fromkeys(outcome.nic.name for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.nic.name == name]
        lines = [HEADINGS, tuple("---" if h in ("call", "") else "---:" for h in HEADINGS)]
        lines += [cells for outcome in mine for cells in outcome_cells(outcome)]
        text += [f"## {nic_title(mine[0].nic)}", ""]
        text += [*(f"| {' | '.join(each)} |" for each in lines), ""]
    if swept:
        text += [f"## {SWEEP_TITLE}", "", "| case | metric | p50, us |", "| --- | --- | ---: |"]
        text += [f"| {each.case} | {each.metric} | {each.median:,.1f} |" for each in swept]
        text += [""]
    return "\n".join(text)


def _pairs(values: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(values[::2], values[1::2], strict=True))
