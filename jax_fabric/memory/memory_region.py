"""Memory of this process."""

from __future__ import annotations

import numpy as np

from jax_fabric import _core
from jax_fabric.errors import InvalidArgument
from jax_fabric.memory.access import Access
from jax_fabric.memory.remote_memory import RemoteMemory


class MemoryRegion:
    """Memory of this process, registered with the NICs of a group; see ``DomainGroup.register``.

    It keeps its buffer alive. Dropping it deregisters the memory as soon as no request reads it any
    more; ``close`` does so at once.
    """

    __slots__ = ("__weakref__", "_access", "_array", "_descriptor", "_native")

    def __init__(self, native: _core.Region, array: np.ndarray, access: Access):
        """Used by ``DomainGroup.register``."""
        self._native = native
        self._array: np.ndarray | None = array
        self._access = access
        self._descriptor: RemoteMemory | None = None

    @property
    def array(self) -> np.ndarray:
        """The memory as NumPy sees it.

        Raises:
          InvalidArgument: the region was closed.
        """
        if self._array is None:
            raise InvalidArgument("this memory region was closed")
        return self._array

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return self._native.nbytes

    @property
    def access(self) -> Access:
        """Who may use it."""
        return self._access

    @property
    def closed(self) -> bool:
        """Whether it is not registered any more."""
        return not self._native.registered

    @property
    def descriptor(self) -> RemoteMemory:
        """What a peer needs to write here.

        Raises:
          FabricError: it was not registered with ``Access.REMOTE_WRITE``, or was closed.
        """
        if self._descriptor is None or self.closed:
            self._descriptor = RemoteMemory(self._native.describe())
        return self._descriptor

    def close(self) -> None:
        """Deregisters the memory and lets go of the buffer; idempotent.

        Writes of peers that come later fail there.

        Raises:
          FabricError: a request may still read the memory: wait for it first.
          DeadlineExceeded: a peer has been writing into it for seconds: is that process stopped?
        """
        self._native.close()
        self._array = None

    def __repr__(self) -> str:
        """Size, access and state."""
        state = ", closed" if self.closed else ""
        return f"MemoryRegion(nbytes={self.nbytes}, access={self._access.name}{state})"
