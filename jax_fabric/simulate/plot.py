"""A picture of the model: p50 over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jax_fabric.simulate.config import MoeSimulationConfig

if TYPE_CHECKING:
    from jax_fabric.simulate.moe import Outcome

_LINES = (
    ("two_phases", "model of the paper's protocol", "--"),
    ("rounds", "model of jax_fabric's messages", ":"),
    ("channel", "model of jax_fabric", "-"),
)


def write(path: Path, config: MoeSimulationConfig, outcomes: Sequence[Outcome]) -> None:
    """Draws dispatch and combine for each NIC, into a file of its suffix's kind (matplotlib)."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(outcome.nic.name for outcome in outcomes))
    figure = Figure(figsize=(10, 3.6 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), 2, squeeze=False)
    for name, line in zip(names, grid, strict=True):
        mine = [outcome for outcome in outcomes if outcome.nic.name == name]
        for index, (call, axes) in enumerate(zip(("dispatch", "combine"), line, strict=True)):
            for protocol, label, style in _LINES:
                there = [each for each in mine if protocol in each.times]
                axes.plot(
                    [each.ranks for each in there],
                    [each.times[protocol].p50_us[index] for each in there],
                    style,
                    marker=".",
                    label=label,
                )
            paper = [each for each in mine if each.paper_us is not None]
            figures = [each.paper_us[index] for each in paper]
            axes.plot([each.ranks for each in paper], figures, "kx", label="the paper, measured")
            axes.set_xscale("log", base=2)
            axes.set(title=f"{name}: {call}, T {config.tokens}", xlabel="ranks", ylabel="p50, us")
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
    grid[0][0].legend(fontsize="small")
    figure.suptitle("A model, not a measurement (docs/model.md)", fontsize="small")
    figure.savefig(path, dpi=150)
