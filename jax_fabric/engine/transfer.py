"""A submitted request."""

from __future__ import annotations

from jax_fabric.arguments import microseconds
from jax_fabric.engine.pending import Pending
from jax_fabric.errors import DeadlineExceeded


class Transfer(Pending):
    """A submitted request.

    Success means that the source may be used again, and nothing about the target: receivers count
    immediates. The memory that it reads is kept until nothing of it is in flight.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """Withdraws what is not posted yet.

        It ends with Cancelled, unless it has ended by itself, once nothing of it is in flight: then
        nothing lands in the target any more that this side has sent.
        """
        self._native.cancel()

    def drained(self) -> bool:
        """Whether nothing of it is in flight any more, so that its source may be changed.

        Implied by ``done()``, unless its deadline passed.
        """
        return self._native.drained()

    def wait_drained(self, timeout_s: float | None = None) -> None:
        """Waits until ``drained()``.

        Raises:
          DeadlineExceeded: it is not, by then; the default is that of ``wait``.
        """
        limit_s = self._wait_limit_s(timeout_s)
        if not self._native.wait_drained(microseconds(limit_s)):
            raise DeadlineExceeded(f"{self._what} is still in flight after {limit_s:g} s")
