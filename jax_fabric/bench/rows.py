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
    middle, least, most = (round_to_digits(f(values)) for f in (statistics.median, min, max))
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


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A figure of jax_fabric (or one that stands alone), and the peer's own where there is one."""

    ours: Row
    theirs: Row | None

    def cells(self) -> tuple[str, ...]:
        """Returns what people read, in the order of :data:`HEADINGS`."""
        ratio = "" if self.ours.ratio is None else f"{self.ours.ratio:.3g}"
        theirs = _range(self.theirs) if self.theirs else ""
        each = self.ours
        return (each.metric, _range(each), each.unit, each.peer, theirs, ratio, str(each.n))


#: Columns of a table of comparisons.
HEADINGS = ("metric", "jax_fabric", "unit", "beside", "the peer", "times better", "n")
OF_THE_PEER = ", of the peer"


def by_case(rows: Iterable[Row]) -> dict[str, list[Comparison]]:
    """Brings the two rows of each comparison together; cases in the order in which they came."""
    rows = list(rows)
    theirs = {(each.case, each.metric, each.peer): each for each in rows}
    cases: dict[str, list[Comparison]] = {}
    for each in rows:
        if not each.metric.endswith(OF_THE_PEER):
            of_peer = theirs.get((each.case, each.metric + OF_THE_PEER, each.peer))
            cases.setdefault(each.case, []).append(Comparison(each, of_peer))
    return cases


def markdown(rows: Iterable[Row]) -> str:
    """Returns tables, one for each case: medians, and in brackets the least and the most."""
    tables = []
    for case, comparisons in by_case(rows).items():
        lines = [HEADINGS, ("---", "---:", "---", "---", "---:", "---:", "---:")]
        lines += [comparison.cells() for comparison in comparisons]
        tables.append("\n".join([f"## {case}", "", *(f"| {' | '.join(c)} |" for c in lines), ""]))
    return "\n".join(tables)


def _range(figure: Row) -> str:
    if figure.min == figure.max:
        return _number(figure.median)
    return f"{_number(figure.median)} [{_number(figure.min)}, {_number(figure.max)}]"


def _number(value: float) -> str:
    """Returns a figure for people: three digits or more, no exponent."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"
