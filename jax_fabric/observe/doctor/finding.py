"""What the doctor says about one thing."""

from __future__ import annotations

import dataclasses
from typing import Literal

State = Literal["ok", "note", "warning", "problem"]
"""Problems keep something from working; warnings make it slow or fragile; notes are for reading."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
      subject: "machine", "GPU 0", "NIC mlx5_0", "libfabric", ...
      check: what was looked at: "link", "memlock", ...
      state: how it is.
      value: what was found.
      fix: the command, or what to do, that mends it; empty where nothing is to be mended.
    """

    subject: str
    check: str
    state: State
    value: str
    fix: str = ""

    def __post_init__(self) -> None:
        """A complaint without a remedy is no help."""
        if self.state in ("warning", "problem") and not self.fix:
            raise ValueError(f"{self.subject}: {self.check}: {self.state} without a fix")
