"""What the demonstration shows: on the terminal, as a picture, as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jax_fabric.demo.checks import Check
from jax_fabric.demo.config import DemoConfig
from jax_fabric.demo.measure import Measurement, Traffic

_CURVE_ROWS = 8
_CURVE_COLUMNS = 60
# From an empty cell to a full one, in eighths.
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Report:
    """Writes to the terminal; all of it is silent in processes other than the first."""

    def __init__(self, *, silent: bool = False):
        """Makes a report."""
        self._console = Console(quiet=silent, highlight=False)
        self._silent = silent

    def configuration(self, config: DemoConfig, *, parameters: int, fabric_bytes: int) -> None:
        """Says what will run."""
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="bold")
        batch = f"{_count(config.rows, 'row')} of {config.sequence} characters"
        table.add_row("ranks", _ranks(config))
        table.add_row("model", f"{config.layers} layers, hidden {config.hidden}, {config.dtype}")
        table.add_row(
            "experts",
            f"{config.experts} in each layer, {config.experts_per_rank} on each rank, "
            f"top {config.top_k} for each token",
        )
        table.add_row("parameters", f"{parameters:,}")
        table.add_row("batch", f"{config.tokens} tokens on each rank: {batch}")
        table.add_row("exchange memory", f"{_bytes(fabric_bytes)} on each rank")
        self._console.rule("[bold]jax_fabric: a mixture-of-experts transformer", align="left")
        self._console.print(table)

    def phase(self, text: str) -> None:
        """Says what happens next."""
        self._console.print(f"[dim]{text}[/dim]")

    @contextlib.contextmanager
    def training(self, steps: int, first_loss: float) -> Iterator[Any]:
        """Shows a progress bar after the first step; gives a function to call with each loss."""
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, disable=self._silent) as progress:
            task = progress.add_task("", total=steps, completed=1, loss=f"{first_loss:.3f}")
            yield lambda loss: progress.update(task, advance=1, loss=f"{loss:.3f}")

    def results(
        self, losses: Sequence[float], checks: Sequence[Check], measurement: Measurement
    ) -> None:
        """Shows the loss curve, the checks, the timings and the bytes moved."""
        self._console.print("\n[bold]loss[/bold], nats for each character")
        for line in curve(losses):
            self._console.print(line, markup=False)
        self._console.print()
        self._console.print(_check_table(checks))
        self._console.print(_timing_table(measurement))
        self._console.print(_traffic_table(measurement.traffic))

    def closing(self, config: DemoConfig, checks: Sequence[Check], seconds: float) -> None:
        """Says in one line how it went."""
        failed = [check.name for check in checks if not check.passed]
        where = f"{_ranks(config)}, {seconds:.0f} s"
        if failed:
            names = "; ".join(failed)
            line = f"[bold red]FAIL[/]: {len(failed)} of {len(checks)} checks ({names}); {where}"
        else:
            line = f"[bold green]PASS[/]: all {len(checks)} checks; {where}"
        self._console.print(line, soft_wrap=True)


def curve(losses: Sequence[float]) -> list[str]:
    """Draws losses from left to right as lines of text, with the scale at the left."""
    width = min(_CURVE_COLUMNS, len(losses))
    values = np.array([part.mean() for part in np.array_split(np.asarray(losses), width)])
    if not np.isfinite(values).all():
        return ["(the loss is not a number)"]
    low, high = float(values.min()), float(values.max())
    # The lowest value still shows one eighth.
    shares = (values - low) / ((high - low) or 1.0)
    heights = 1 + np.rint(shares * (_CURVE_ROWS * 8 - 1)).astype(int)
    lines = []
    for row in reversed(range(_CURVE_ROWS)):
        label = {_CURVE_ROWS - 1: f"{high:.2f}", 0: f"{low:.2f}"}.get(row, "")
        cells = "".join(_EIGHTHS[int(np.clip(h - row * 8, 0, 8))] for h in heights)
        lines.append(f"{label:>6} │{cells}")
    lines.append(f"{'':>6} └{'─' * width}")
    lines.append(f"{'':>8}step 1{f'step {len(losses)}':>{max(0, width - 6)}}")
    return lines


def _check_table(checks: Sequence[Check]) -> Table:
    title = "against the oracle (plain JAX, one device, no exchange)"
    table = Table(title=title, title_justify="left")
    table.add_column("check")
    table.add_column("measured", justify="right")
    table.add_column("limit", justify="right")
    table.add_column("result")
    table.add_column("note", style="dim")
    for check in checks:
        result = "[green]PASS[/]" if check.passed else "[bold red]FAIL[/]"
        table.add_row(check.name, f"{check.error:.3g}", f"{check.limit:.3g}", result, check.note)
    return table


def _timing_table(measurement: Measurement) -> Table:
    table = Table(title="time of a jitted call over all ranks", title_justify="left")
    table.add_column("call")
    for name in ("median", "fastest", "slowest"):
        table.add_column(name, justify="right")
    table.add_column("calls", justify="right")
    for timing in measurement.timings:
        times = (timing.median, timing.fastest, timing.slowest)
        table.add_row(timing.name, *(f"{t * 1e3:.2f} ms" for t in times), str(timing.calls))
    return table


def _traffic_table(traffic: Traffic) -> Table:
    table = Table(title="payload of one dispatch, all ranks", title_justify="left")
    table.add_column("")
    table.add_column("rows", justify="right")
    table.add_column("bytes", justify="right")
    table.add_column("of the lower bound", justify="right")
    for name, rows in (
        ("lower bound: each token once for each rank", traffic.rows_needed),
        ("moved", traffic.rows_moved),
        ("blocks of fixed size would move", traffic.rows_of_collective),
    ):
        share = f"{rows / traffic.rows_needed:.2f}"
        table.add_row(name, f"{rows:,}", _bytes(rows * traffic.row_bytes), share)
    return table


def _count(number: int, thing: str) -> str:
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{plural if number != 1 else ''}"


def _ranks(config: DemoConfig) -> str:
    return f"{_count(config.ranks, 'CPU device')} of {_count(config.processes, 'process')}"


def _bytes(number: float) -> str:
    """Returns a number of bytes with a unit that leaves up to four digits."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


def write_json(
    path: Path,
    config: DemoConfig,
    losses: Sequence[float],
    checks: Sequence[Check],
    measurement: Measurement,
) -> None:
    """Writes everything that was measured."""
    content = {
        "config": dataclasses.asdict(config),
        "losses": list(losses),
        "checks": [dataclasses.asdict(c) | {"passed": c.passed} for c in checks],
        "timings_s": [dataclasses.asdict(t) for t in measurement.timings],
        "traffic": dataclasses.asdict(measurement.traffic),
        "passed": all(c.passed for c in checks),
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_plot(path: Path, config: DemoConfig, losses: Sequence[float]) -> None:
    """Draws the loss into a picture; the kind follows the suffix of `path` (needs matplotlib)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(1, len(losses) + 1), losses)
    axes.set(
        xlabel="step",
        ylabel="loss, nats for each character",
        title=f"{config.experts} experts over {config.ranks} ranks",
    )
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
