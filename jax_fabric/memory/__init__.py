"""Memory of this process that the engine may use, and memory of peers that it may write to.

:class:`MemoryRegion` is what ``DomainGroup.register`` returns; its ``descriptor``, a
:class:`RemoteMemory`, is what a peer needs to write there. :func:`allocate` gives memory that
processes of the same machine write to fastest.
"""

from jax_fabric.memory.access import Access
from jax_fabric.memory.allocate import allocate
from jax_fabric.memory.memory_region import MemoryRegion
from jax_fabric.memory.remote_memory import RemoteMemory

__all__ = ["Access", "MemoryRegion", "RemoteMemory", "allocate"]
