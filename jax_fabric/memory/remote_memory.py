"""Memory of a peer."""

from __future__ import annotations

from typing import Any

from jax_fabric import _core
from jax_fabric.arguments import byte_string


class RemoteMemory:
    """Memory that a peer has registered for writing, as its descriptor names it.

    Descriptors travel as bytes: versioned, checksummed and checked against their bounds when they
    are read. Pickling one goes through these bytes, too.
    """

    __slots__ = ("_bytes", "_native")

    def __init__(self, descriptor: bytes):
        """Reads a descriptor.

        Args:
          descriptor: what ``bytes(region.descriptor)`` gave, on any process.

        Raises:
          CorruptData: the bytes are damaged or truncated.
          InvalidArgument: they are no descriptor.
          FabricError: they are of a version that this one does not know.
        """
        self._native = _core.RemoteMemory.from_bytes(byte_string("descriptor", descriptor))
        self._bytes = self._native.to_bytes()

    def __bytes__(self) -> bytes:
        """The descriptor."""
        return self._bytes

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return self._native.nbytes

    @property
    def nic_count(self) -> int:
        """NICs that can reach it: as many as the group that registered it has."""
        return self._native.nic_count

    def __reduce__(self) -> tuple[type[RemoteMemory], tuple[bytes]]:
        """Pickles the bytes."""
        return RemoteMemory, (self._bytes,)

    def __eq__(self, other: Any) -> bool:
        """Whether both name the same memory."""
        return isinstance(other, RemoteMemory) and self._bytes == other._bytes

    def __hash__(self) -> int:
        """Of the descriptor."""
        return hash(self._bytes)

    def __repr__(self) -> str:
        """Size and NICs."""
        return f"RemoteMemory(nbytes={self.nbytes}, nic_count={self.nic_count})"
