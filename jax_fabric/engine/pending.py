"""What the engine will end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax_fabric import _core
from jax_fabric.arguments import function, microseconds, seconds
from jax_fabric.errors import DeadlineExceeded, FabricError

# A request ends by its own deadline; whoever waits for that leaves the worker this much to say so.
_GRACE_S = 5.0


class Pending:
    """Something that the engine will end: in success, with an error, or cancelled.

    Dropping one does not stop it.
    """

    __slots__ = ("__weakref__", "_native", "_timeout_s", "_what")

    def __init__(self, native: _core.Pending, what: str, timeout_s: float):
        """Used by the engine."""
        self._native = native
        self._what = what
        self._timeout_s = timeout_s

    def done(self) -> bool:
        """Whether it has ended."""
        return self._native.done()

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits for the end, and raises what it ended with.

        Args:
          timeout_s: of this wait; default: what is certain to be enough, since it ends by its own
            deadline.

        Raises:
          DeadlineExceeded: it has not ended by then, and goes on; or its own deadline passed.
          PeerUnavailable: the peer is lost.
          Cancelled: it was cancelled, or the engine was closed.
          FabricError: anything else.
        """
        limit_s = self._wait_limit_s(timeout_s)
        if not self._native.wait(microseconds(limit_s)):
            raise DeadlineExceeded(
                f"{self._what} has not ended within {limit_s:g} s; it goes on until its own "
                f"deadline of {self._timeout_s:g} s"
            )
        if (error := self.error()) is not None:
            raise error

    def result(self) -> None:
        """Raises what it ended with; does not wait.

        Raises:
          DeadlineExceeded: it has not ended yet.
          FabricError: how it ended, as of ``wait``.
        """
        self.wait(0.0)

    def error(self) -> FabricError | None:
        """What it ended with: None for success, and while it has not ended."""
        return self._native.error()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls ``callback(self)`` on the engine's callback thread, once it has ended.

        Also when it has ended already. What the callback raises goes to ``sys.unraisablehook``. All
        callbacks of an engine share one thread: those that take long delay the others.
        """
        function("callback", callback)
        self._native.add_done_callback(callback, self)

    def _wait_limit_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self._timeout_s + _GRACE_S
        return seconds("timeout_s", timeout_s)

    def __repr__(self) -> str:
        """What it is, and how it stands."""
        error = self.error()
        state = "pending" if not self.done() else "done" if error is None else f"failed: {error}"
        return f"<{type(self).__name__}: {self._what}: {state}>"
