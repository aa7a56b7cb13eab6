"""A peer of a group."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another group, in this process or elsewhere, as the group that added it knows it.

    Attributes:
      handle: number of the peer in that group.
      name: what the other side called its group.
    """

    handle: int
    name: str
