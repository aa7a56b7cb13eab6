"""What of a machine matters for transfers: GPUs, NICs and NUMA nodes."""

from __future__ import annotations

import dataclasses
import os

from jax_fabric.topology.distance import Distance, distance
from jax_fabric.topology.gpu import Gpu, find_gpus
from jax_fabric.topology.nic import Nic, find_nics
from jax_fabric.topology.sysfs import NumaNode, PciLocation, Sysfs


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine, as the kernel describes it.

    Attributes:
      gpus: that this process could use, by PCI address.
      nics: all of /sys/class/infiniband, by name.
      numa_nodes: with their cores; none where the kernel knows of none.
    """

    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()

    @classmethod
    def read(cls, root: str | os.PathLike[str] = "/") -> Machine:
        """Reads a machine; what is not there is left away, nothing is started or opened.

        Args:
          root: the folder that has its ``sys`` and ``proc``.
        """
        sysfs = Sysfs(root)
        return cls(find_gpus(sysfs), find_nics(sysfs), sysfs.numa_nodes())

    def distance(self, a: PciLocation | None, b: PciLocation | None) -> Distance:
        """Between two of its devices."""
        return distance(a, b, len(self.numa_nodes))

    def cpus_near(self, location: PciLocation | None) -> tuple[int, ...]:
        """Cores of a device's NUMA node; none where it makes no difference or nobody knows."""
        if location is None or len(self.numa_nodes) < 2:
            return ()
        return next((node.cpus for node in self.numa_nodes if node.index == location.numa_node), ())
