"""Grants that are taken back."""

from __future__ import annotations

from jax_fabric.engine.pending import Pending
from jax_fabric.errors import FabricError, InQuarantine


class Revocation(Pending):
    """A grant that is taken back; see ``DomainGroup.revoke_grant``.

    Success means that nothing lands any more that was written under the grant, so that its memory
    may be used for something else. Until then it is in quarantine: with DeadlineExceeded it is not
    certain yet, with InQuarantine it will not be, unless the writer is removed as a peer.
    """

    __slots__ = ()

    def error(self) -> FabricError | None:
        """What it ended with: None for success, and while it has not ended."""
        error = self._native.error()
        if error is None or error.code != InQuarantine.code:
            return error
        quarantine = InQuarantine(str(error))
        quarantine.peer, quarantine.nic = error.peer, error.nic
        return quarantine
