"""What a benchmark shows on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jax_fabric.bench.config import MoeBenchConfig
from jax_fabric.bench.rows import HEADINGS, Comparison, Row, by_case


class Report:
    """Writes to the terminal; silent in processes other than the first."""

    def __init__(self, *, silent: bool = False):
        """Makes a report."""
        self._console = Console(quiet=silent, highlight=False)
        self._silent = silent

    def configuration(self, config: MoeBenchConfig) -> None:
        """Says what will run."""
        self.heading("dispatch and combine", f"{config.case}; beside: {', '.join(config.peers)}")

    def heading(self, title: str, text: str) -> None:
        """Says what will run, in words."""
        self._console.rule(f"[bold]jax_fabric: {title}", align="left")
        self._console.print(text)

    @contextlib.contextmanager
    def progress(self, steps: int) -> Iterator[Callable[[], None]]:
        """Shows a progress bar; gives a function to call after each step."""
        columns = (
            TextColumn("compile, compare, measure"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, disable=self._silent) as progress:
            task = progress.add_task("", total=steps)
            yield lambda: progress.advance(task)

    def rows(self, rows: Sequence[Row]) -> None:
        """Shows the results, a table for each case."""
        for case, comparisons in by_case(rows).items():
            self._console.print(_table(case, comparisons))


def _table(case: str, comparisons: Sequence[Comparison]) -> Table:
    table = Table(title=case, title_justify="left")
    for heading in HEADINGS:
        words = heading in ("metric", "unit", "beside")
        table.add_column(heading, justify="left" if words else "right", overflow="fold")
    for comparison in comparisons:
        table.add_row(*comparison.cells())
    return table
