"""benchmarks/_nic.py: what is made of what its programs print."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import _nic  # noqa: E402


def _line(contender: str, seconds: list[float], write_bytes: int) -> dict:
    return {
        "case": "writes",
        "contender": contender,
        "write_bytes": write_bytes,
        "writes": 1000,
        "window": 4,
        "seconds": seconds,
    }


def test_rates_and_ratios_of_each_round():
    """The ratio is the median over rounds, not of the medians; more seconds are worse."""
    lines = [
        _line("raw", [1.0, 1.0, 4.0], 1 << 10),
        _line("domain", [2.0, 1.0, 2.0], 1 << 10),
    ]
    ours, theirs = _nic.comparisons(lines, "over", "raw")
    assert (ours.metric, ours.peer, ours.unit) == ("rate of the domain", "raw", "million/s")
    assert (ours.median, ours.min, ours.max) == pytest.approx((0.0005, 0.0005, 0.001))
    assert ours.ratio == pytest.approx(1.0)  # of 0.5, 1 and 2
    assert theirs.ratio is None
    assert theirs.median == pytest.approx(0.001)


def test_large_writes_are_bytes():
    """From 1 MiB on the unit is GB/s."""
    lines = [_line("raw", [1.0], 1 << 20), _line("domain", [2.0], 1 << 20)]
    ours, _ = _nic.comparisons(lines, "over", "raw")
    assert ours.unit == "GB/s"
    assert ours.median == pytest.approx(1000 * 2**20 * 1e-9 / 2, rel=1e-4)


def test_counted_instructions():
    """The figure of callgrind's last lines; nothing else is taken for it."""
    assert _nic.instructions("==1== Events    : Ir\n==1== Collected : 72147205\n") == 72147205
    with pytest.raises(ValueError, match="counted nothing: no such program"):
        _nic.instructions("no such program")
