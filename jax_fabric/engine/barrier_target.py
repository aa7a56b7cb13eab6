"""One immediate of a barrier."""

from __future__ import annotations

import dataclasses

from jax_fabric.engine.peer import Peer
from jax_fabric.memory import RemoteMemory


@dataclasses.dataclass(frozen=True)
class BarrierTarget:
    """An immediate without payload.

    Attributes:
      peer: that gets it.
      target: any memory of that peer: even an empty write names one.
      immediate: an id that the peer handed out.
    """

    peer: Peer
    target: RemoteMemory
    immediate: int
