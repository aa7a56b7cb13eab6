"""GPUs, NICs and NUMA nodes of a machine, and which belong together.

All of it is read from /sys and /proc, below a root that tests replace; nothing is opened or
started. ``Machine.read()`` is the machine; ``assign`` gives GPUs their NICs: as many for each,
every NIC to about as many GPUs, and the nearest first. docs/topology.md has the rules.
"""

from jax_fabric.topology.assignment import (
    MOST_NICS,
    Assignment,
    assign_to_cpu_devices,
    assign_to_gpus,
)
from jax_fabric.topology.choice import (
    NicSelection,
    assign,
    cpus_of_gpu,
    nics_of_cpu_device,
    nics_of_gpu,
)
from jax_fabric.topology.data_nics import DataNics, find_data_nics
from jax_fabric.topology.distance import Distance, distance, hops
from jax_fabric.topology.gpu import Gpu, find_gpus, visible_gpus
from jax_fabric.topology.machine import Machine
from jax_fabric.topology.nic import Family, Gid, Nic, Port, find_nics
from jax_fabric.topology.sysfs import (
    NumaNode,
    PciLocation,
    Sysfs,
    format_cpu_list,
    parse_cpu_list,
)

__all__ = [
    "MOST_NICS",
    "Assignment",
    "DataNics",
    "Distance",
    "Family",
    "Gid",
    "Gpu",
    "Machine",
    "Nic",
    "NicSelection",
    "NumaNode",
    "PciLocation",
    "Port",
    "Sysfs",
    "assign",
    "assign_to_cpu_devices",
    "assign_to_gpus",
    "cpus_of_gpu",
    "distance",
    "find_data_nics",
    "find_gpus",
    "find_nics",
    "format_cpu_list",
    "hops",
    "nics_of_cpu_device",
    "nics_of_gpu",
    "parse_cpu_list",
    "visible_gpus",
]
