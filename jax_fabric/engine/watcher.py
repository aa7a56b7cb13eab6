"""A word of memory that is watched."""

from __future__ import annotations

import types

import numpy as np

from jax_fabric import _core
from jax_fabric.arguments import integer, microseconds, seconds
from jax_fabric.errors import DeadlineExceeded

_CLOSE_TIMEOUT_S = 10.0


class Watcher:
    """A 64-bit word in host memory whose changes are called back; see ``TransferEngine.watch``."""

    __slots__ = ("__weakref__", "_native", "_word")

    def __init__(self, native: _core.Watcher):
        """Used by ``TransferEngine.watch``."""
        self._native = native
        self._word = np.asarray(native.word)

    @property
    def word(self) -> np.ndarray:
        """The word itself, uint64[1], on a cache line of its own.

        It may be given to whatever writes memory. A store through NumPy is seen, but orders
        nothing: what was written before it may be seen later. ``store`` orders.
        """
        return self._word

    def store(self, value: int) -> None:
        """Stores with release: what this thread wrote before is visible to the callback."""
        self._native.store(integer("value", value))

    def load(self) -> int:
        """Loads with acquire."""
        return self._native.load()

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """The callback does not run any more afterwards; idempotent.

        Waits for a call that is running, except from inside of it. Dropping a watcher waits for
        nothing.

        Raises:
          DeadlineExceeded: that call has not returned by then; there will be no other one.
        """
        limit_s = seconds("timeout_s", timeout_s)
        self._native.stop()
        if not self._native.wait_until_returned(microseconds(limit_s)):
            raise DeadlineExceeded(f"watcher: its callback has not returned within {limit_s:g} s")

    def __enter__(self) -> Watcher:
        """The watcher itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()
