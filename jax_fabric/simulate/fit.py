"""Latency and bandwidth of a NIC, fitted on the paper's EP16 and EP64, never on its EP32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jax_fabric.simulate import model
from jax_fabric.simulate.config import MoeSimulationConfig
from jax_fabric.simulate.constants import FITTED_RANKS, PAPER_DECODE_US, NicConstants

#: Least and most of latency_us and bytes_per_ns: both NICs have 400 Gb/s. Without bounds the fit of
#: EFA goes beyond that (55.8), and the one of ConnectX-7 to no latency at all.
BOUNDS = ((1.0, 100.0), (1.0, 50.0))


def fit(
    nic: NicConstants, *, steps: int = 12, on_step: Callable[[], None] | None = None
) -> NicConstants:
    """Returns the NIC with the constants that fit best.

    Gauss-Newton on the relative errors of dispatch and combine at :data:`FITTED_RANKS`: four
    figures for two constants, within :data:`BOUNDS`. Derivatives are differences of the simulation.

    Args:
      nic: where to begin, and everything that is not fitted.
      steps: at most.
      on_step: called after each.
    """
    least, most = np.array(BOUNDS).T
    constants = np.array([nic.latency_us, nic.bytes_per_ns])
    best = errors(nic)
    for _ in range(steps):
        jacobian = _jacobian(nic, constants, best)
        gradient = jacobian.T @ best
        # What is at a bound and would go beyond stays there.
        free = ~((constants <= least) & (gradient > 0)) & ~((constants >= most) & (gradient < 0))
        step = np.zeros(2)
        step[free] = np.linalg.lstsq(jacobian[:, free], -best, rcond=None)[0]
        # Half of a step that leads uphill, and half of that.
        for _ in range(4):
            candidate = np.clip(constants + step, least, most)
            found = errors(_with(nic, candidate))
            if found @ found < best @ best:
                break
            step = step / 2
        else:
            break
        moved = np.abs(candidate - constants).max()
        constants, best = candidate, found
        if on_step:
            on_step()
        if moved < 0.05:
            break
    return _with(nic, np.round(constants, 1))


def errors(nic: NicConstants, ranks: Sequence[int] = FITTED_RANKS) -> np.ndarray:
    """Returns model / paper - 1 of dispatch and combine for each number of ranks, in that order."""
    found = []
    for each in ranks:
        times = model.run(MoeSimulationConfig(ranks=(each,), calls=2), "two_phases", nic, each)
        paper = PAPER_DECODE_US[nic.name][each]
        found += [time / theirs - 1 for time, theirs in zip(times.p50_us, paper, strict=True)]
    return np.array(found)


def _with(nic: NicConstants, constants: np.ndarray) -> NicConstants:
    latency_us, bytes_per_ns = (float(each) for each in constants)
    return dataclasses.replace(nic, latency_us=latency_us, bytes_per_ns=bytes_per_ns)


def _jacobian(nic: NicConstants, constants: np.ndarray, at: np.ndarray) -> np.ndarray:
    columns = []
    for index, distance in enumerate((1.0, 1.0)):
        moved = constants.copy()
        moved[index] += distance
        columns.append((errors(_with(nic, moved)) - at) / distance)
    return np.stack(columns, axis=1)
