"""Leave to write, that can be taken back."""

from __future__ import annotations

from typing import Any

from jax_fabric import _core
from jax_fabric.arguments import byte_string, instance


class WriteGrant:
    """Leave to write into a group's memory, which that group can take back.

    Its owner makes it (``DomainGroup.open_grant``) and sends its bytes to the writer, along with
    the descriptor; the writer gives it to the requests that write there.
    """

    __slots__ = ("_bytes", "_native")

    def __init__(self, grant: bytes):
        """Reads a grant.

        Args:
          grant: what ``bytes(grant)`` gave at its owner.

        Raises:
          CorruptData: the bytes are damaged or truncated.
          InvalidArgument: they are no grant.
          FabricError: they are of a version that this one does not know.
        """
        self._native = _core.WriteGrant.from_bytes(byte_string("grant", grant))
        self._bytes = self._native.to_bytes()

    def __bytes__(self) -> bytes:
        """What the writer needs."""
        return self._bytes

    @property
    def id(self) -> int:
        """Of its owner's; never used again."""
        return self._native.id

    @property
    def immediate(self) -> int:
        """That every write under the grant brings; one of its owner's."""
        return self._native.immediate

    def __reduce__(self) -> tuple[type[WriteGrant], tuple[bytes]]:
        """Pickles the bytes."""
        return WriteGrant, (self._bytes,)

    def __eq__(self, other: Any) -> bool:
        """Whether both are the same."""
        return isinstance(other, WriteGrant) and self._bytes == other._bytes

    def __hash__(self) -> int:
        """Of the bytes."""
        return hash(self._bytes)

    def __repr__(self) -> str:
        """Id and immediate."""
        return f"WriteGrant(id={self.id}, immediate={self.immediate})"


def native_grant(grant: WriteGrant | None) -> _core.WriteGrant | None:
    """An argument of that name, checked, as the extension takes it."""
    if grant is None:
        return None
    instance("grant", grant, WriteGrant)
    return grant._native
