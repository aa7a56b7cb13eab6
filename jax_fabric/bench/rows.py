"""The results of a benchmark: one row a figure."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
      bench: the benchmark.
      case: the sizes.
      peer: beside what; "" for a figure that stands alone.
      metric: what was measured; of jax_fabric unless it says "of the peer".
      unit: of `median`, `min` and `max`.
      median: of all values.
      min: the smallest one.
      max: the largest one.
      n: how many values.
      ratio: how many times better than the peer, above 1 is better for jax_fabric; the median of
        the ratios of each round, in which both ran one right after the other. None for figures
        that stand alone.
    """

    bench: str
    case: str
    peer: str
    metric: str
    unit: str
    median: float
    min: float
    max: float
    n: int
    ratio: float | None


def row(
    bench: str,
    case: str,
    metric: str,
    unit: str,
    values: Sequence[float],
    *,
    peer: str = "",
    ratios: Sequence[float] | None = None,
) -> Row:
    """Returns the row of some values of one figure."""
    ratio = None if ratios is None else round_to_digits(statistics.median(ratios))
    middle, least, most = (
        round_to_digits(f(values)) for f in (statistics.median, min, max)
    )
    return Row(bench, case, peer, metric, unit, middle, least, most, len(values), ratio)


def round_to_digits(value: float, digits: int = 5) -> float:
    """Rounds to significant digits: more say nothing, and hide in a file what does."""
    return float(f"{value:.{digits}g}")


def write_json(path: Path, rows: Iterable[Row]) -> None:
    """Writes a list with one object a row."""
    lines = ",\n".join(f"  {json.dumps(dataclasses.asdict(each))}" for each in rows)
    path.write_text(f"[\n{lines}\n]\n")


def read_json(path: Path) -> list[Row]:
    """Reads what :func:`write_json` wrote."""
    return [Row(**each) for each in json.loads(path.read_text())]


def markdown(rows: Iterable[Row]) -> str:
    """Returns tables, one for each case."""
    cases: dict[str, list[Row]] = {}
    for each in rows:
        cases.setdefault(each.case, []).append(each)
    return "\n".join(_markdown_table(case, members) for case, members in cases.items())


def _markdown_table(case: str, rows: Sequence[Row]) -> str:
    lines = [
        f"## {case}\n" if case else "## The machine\n",
        "| metric | beside | median | min | max | unit | n | times better |",
        "|---|---|---:|---:|---:|---|---:|---:|",
    ]
    for each in rows:
        ratio = "" if each.ratio is None else f"{each.ratio:.3g}"
        cells = [each.metric, each.peer, *(number(v) for v in (each.median, each.min, each.max))]
        lines.append(f"| {' | '.join([*cells, each.unit, str(each.n), ratio])} |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Returns a figure for people: four digits, no exponent."""
    digits = 0 if abs(value) >= 1000 else 2 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}"
