"""The text that the demonstration learns: characters as small integers, and batches of them."""

from __future__ import annotations

import dataclasses
from importlib import resources

import numpy as np

# data/ORIGIN.txt says where they come from.
_FILES = ("alice.txt", "sonnets.txt", "raven.txt", "gettysburg.txt")


@dataclasses.dataclass(frozen=True)
class Text:
    """A text in codes.

    Attributes:
      codes: int32[characters], each an index into `alphabet`.
      alphabet: the characters that occur, in order.
    """

    codes: np.ndarray
    alphabet: str

    def batch(self, step: int, *, rows: int, length: int, seed: int) -> np.ndarray:
        """Returns int32[rows, length], windows that begin anywhere; a pure function of all four."""
        rng = np.random.default_rng((seed, step))
        starts = rng.integers(len(self.codes) - length + 1, size=rows)
        return self.codes[starts[:, None] + np.arange(length)]


def load() -> Text:
    """Reads the texts that come with the package."""
    folder = resources.files(__package__) / "data"
    text = "\n\n".join((folder / name).read_text(encoding="ascii") for name in _FILES)
    alphabet = "".join(sorted(set(text)))
    code_of = np.zeros(128, np.int32)
    code_of[[ord(c) for c in alphabet]] = np.arange(len(alphabet))
    return Text(code_of[np.frombuffer(text.encode("ascii"), np.uint8)], alphabet)
