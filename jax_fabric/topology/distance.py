"""How far two devices of a machine are from each other."""

from __future__ import annotations

import enum

from jax_fabric.topology.sysfs import UNKNOWN_NODE, PciLocation


class Distance(enum.IntEnum):
    """What lies between two devices, the nearest first."""

    SWITCH = 0
    """A PCIe switch that both are below: data need not come near a CPU."""
    ROOT_COMPLEX = 1
    """One root complex of a CPU."""
    NUMA_NODE = 2
    """One NUMA node, from root complex to root complex."""
    ACROSS = 3
    """The link between CPUs; or nobody knows."""

    @property
    def words(self) -> str:
        """For tables."""
        return self.name.lower().replace("_", " ")


def distance(a: PciLocation | None, b: PciLocation | None, numa_nodes: int) -> Distance:
    """Between two devices.

    Args:
      a: one device; None: it has no place, as a CPU.
      b: the other one.
      numa_nodes: of the machine; with one of them or none all devices are at it.
    """
    if a is None or b is None:
        return Distance.ACROSS
    shared = _shared_parts(a, b)
    if shared >= 2:
        return Distance.SWITCH
    if shared == 1:
        return Distance.ROOT_COMPLEX
    if numa_nodes <= 1 or a.numa_node == b.numa_node != UNKNOWN_NODE:
        return Distance.NUMA_NODE
    return Distance.ACROSS


def hops(a: PciLocation | None, b: PciLocation | None) -> int:
    """Links of PCIe on the way from one device to the other; 0 where one has no place."""
    if a is None or b is None:
        return 0
    return len(a.path) + len(b.path) - 2 * _shared_parts(a, b)


def _shared_parts(a: PciLocation, b: PciLocation) -> int:
    """How much of both paths is the same, from the root complex on."""
    shared = 0
    for x, y in zip(a.path[:-1], b.path[:-1], strict=False):
        if x != y:
            break
        shared += 1
    return shared
