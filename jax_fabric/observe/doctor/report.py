"""The doctor's findings on a terminal and as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jax_fabric.observe.doctor.finding import Finding

_MARKS = {
    "ok": "[green]ok[/green]",
    "note": "[dim]note[/dim]",
    "warning": "[yellow]warning[/yellow]",
    "problem": "[bold red]PROBLEM[/bold red]",
}


def print_table(findings: Sequence[Finding], console: Console) -> None:
    """A table of all, and below it what to do."""
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for heading in ("what", "check", "state", "found"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "state")
    for subject, group in itertools.groupby(findings, key=lambda finding: finding.subject):
        for number, finding in enumerate(group):
            name = escape(subject) if number == 0 else ""
            table.add_row(name, finding.check, _MARKS[finding.state], escape(finding.value))
        table.add_section()
    console.print(table)
    to_do = [finding for finding in findings if finding.state in ("warning", "problem")]
    if to_do:
        console.print("\n[bold]what mends it[/bold]")
    for finding in to_do:
        console.print(
            f"  {_MARKS[finding.state]} {escape(finding.subject)}, {finding.check}: "
            f"{escape(finding.fix)}",
            soft_wrap=True,
        )
    console.print(f"\n{summary(findings)}")


def summary(findings: Iterable[Finding]) -> str:
    """One line: how many of what."""
    states = [finding.state for finding in findings]
    problems, warnings = states.count("problem"), states.count("warning")
    if not problems and not warnings:
        return "nothing to mend"
    return f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}"


def to_json(findings: Iterable[Finding]) -> str:
    """All of it, for programs."""
    rows = [dataclasses.asdict(finding) for finding in findings]
    problems = sum(row["state"] == "problem" for row in rows)
    return json.dumps({"ok": problems == 0, "problems": problems, "findings": rows}, indent=2)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
