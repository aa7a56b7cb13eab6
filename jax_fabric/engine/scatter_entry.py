"""One write of a scatter."""

from __future__ import annotations

import dataclasses

from jax_fabric.engine.peer import Peer
from jax_fabric.memory import MemoryRegion, RemoteMemory


@dataclasses.dataclass(frozen=True)
class ScatterEntry:
    """One write of a scatter.

    Attributes:
      peer: that is written to.
      target: memory of that peer.
      immediate: an id that the peer handed out; it arrives once, unless ``max_nbytes`` exceeds what
        one write can carry (``DomainGroup.scatter_immediates``).
      source: memory of this process; None for a write without bytes.
      source_offset: bytes.
      target_offset: bytes.
      nbytes: to write; default: all of the source from ``source_offset`` on, 0 without one.
      max_nbytes: of any later ``PreparedScatter.set_nbytes``; default: ``nbytes``.
    """

    peer: Peer
    target: RemoteMemory
    immediate: int
    source: MemoryRegion | None = None
    source_offset: int = 0
    target_offset: int = 0
    nbytes: int | None = None
    max_nbytes: int = 0
