"""NICs and cores of the local devices of a program: what was asked for, else the nearest ones."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from jax_fabric.errors import InvalidArgument
from jax_fabric.topology.assignment import (
    MOST_NICS,
    Assignment,
    assign_to_cpu_devices,
    assign_to_gpus,
)
from jax_fabric.topology.data_nics import find_data_nics
from jax_fabric.topology.gpu import Gpu, visible_gpus
from jax_fabric.topology.machine import Machine
from jax_fabric.topology.nic import Family


@dataclasses.dataclass(frozen=True)
class NicSelection:
    """What was said about NICs, by a program or by JAX_FABRIC_NICS.

    Attributes:
      groups: names for each local device in order, or for all of them where there is one entry.
        None: nothing was said.
      exclude: names that must not be used; the others are assigned by distance.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def make(cls, nics: Sequence[str] | Sequence[Sequence[str]]) -> NicSelection:
        """Of an argument ``nics=``.

        Raises:
          InvalidArgument: it is neither names nor a list of names for each device; names repeat, or
            there are too many.
        """
        if isinstance(nics, str):
            raise InvalidArgument(f"nics={nics!r}: give a list of names, as [{nics!r}]")
        given = list(nics)
        groups = [given] if all(isinstance(each, str) for each in given) else given
        return cls(tuple(_checked(group) for group in groups))

    def of_device(self, device: int, devices: int) -> tuple[str, ...]:
        """The names for a local device.

        Raises:
          InvalidArgument: there are entries for another number of devices.
        """
        if len(self.groups) == 1:
            return self.groups[0]
        if len(self.groups) != devices:
            raise InvalidArgument(
                f"nics={[list(group) for group in self.groups]}: names NICs for "
                f"{len(self.groups)} devices, and this process has {devices}: name them once for "
                f"all, or for each"
            )
        return self.groups[device]


def assign(
    machine: Machine,
    family: Family,
    *,
    visible: str | None = None,
    exclude: Sequence[str] = (),
    nics_per_device: int | None = None,
) -> tuple[tuple[Gpu, ...], Assignment]:
    """The GPUs that this process sees, and their NICs.

    Args:
      machine: the machine.
      family: of NICs.
      visible: value of CUDA_VISIBLE_DEVICES; None: not set.
      exclude: NICs that must not be used.
      nics_per_device: 1 to 4; default: by the number of NICs.

    Raises:
      InvalidArgument: ``visible`` makes no sense, or so does the number.
    """
    if nics_per_device is not None and not 1 <= nics_per_device <= MOST_NICS:
        raise InvalidArgument(f"nics_per_device={nics_per_device}: must be from 1 to {MOST_NICS}")
    data = find_data_nics(machine, family, exclude)
    everybody = assign_to_gpus(machine, data, nics_per_device)
    seen = visible_gpus(machine.gpus, visible)
    return seen, dataclasses.replace(everybody, nics=tuple(everybody.nics[g.index] for g in seen))


def nics_of_gpu(
    machine: Machine, family: Family, ordinal: int, visible: str | None, exclude: Sequence[str]
) -> tuple[str, ...]:
    """NICs of the GPU that CUDA calls ``ordinal`` in this process; none where /sys knows none.

    Raises:
      InvalidArgument: CUDA_VISIBLE_DEVICES makes no sense.
    """
    seen, assigned = assign(machine, family, visible=visible, exclude=exclude)
    return assigned.nics[ordinal] if ordinal < len(seen) else ()


def nics_of_cpu_device(
    machine: Machine, family: Family, device: int, devices: int, exclude: Sequence[str]
) -> tuple[str, ...]:
    """NICs of one of the CPU devices of a mesh; none where /sys knows none.

    Args:
      machine: the machine.
      family: of NICs.
      device: its position in the mesh.
      devices: of the mesh.
      exclude: NICs that must not be used.
    """
    data = find_data_nics(machine, family, exclude)
    return assign_to_cpu_devices(machine, data, devices).nics[device]


def cpus_of_gpu(machine: Machine, ordinal: int, visible: str | None) -> tuple[int, ...]:
    """Cores near the GPU that CUDA calls ``ordinal``, of those that this process may use.

    None where it makes no difference: one NUMA node, or a node none of whose cores are ours.
    """
    seen = visible_gpus(machine.gpus, visible)
    near = machine.cpus_near(seen[ordinal].pci) if ordinal < len(seen) else ()
    return tuple(sorted(set(near) & os.sched_getaffinity(0)))


def _checked(group: Sequence[str]) -> tuple[str, ...]:
    names = tuple(group)
    if not 1 <= len(names) <= MOST_NICS or not all(isinstance(n, str) and n for n in names):
        raise InvalidArgument(
            f"nics={list(names)!r}: give the names of 1 to {MOST_NICS} NICs for a device"
        )
    if len(set(names)) != len(names):
        raise InvalidArgument(f"nics={list(names)!r}: name each NIC once for a device")
    return names
