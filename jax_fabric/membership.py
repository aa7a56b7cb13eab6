"""Who takes part in a fabric."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Membership:
    """Who takes part in a fabric.

    Attributes:
      epoch: 0, and one more with every ``recover``.
      processes: their indices, rising.
      present: bool[...], of the mesh's shape: whether the device's process takes part. Give it to
        your program as an operand where that matters, to route around lost experts, say.
      step: what ``recover`` agreed on, 0 before.
    """

    epoch: int
    processes: tuple[int, ...]
    present: np.ndarray
    step: int
