"""Where the local devices of a fabric are in the machine: their NICs and their cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

from jax_fabric import _core
from jax_fabric.arguments import integer
from jax_fabric.errors import InvalidArgument
from jax_fabric.topology import (
    Machine,
    NicSelection,
    cpus_of_gpu,
    nics_of_cpu_device,
    nics_of_gpu,
)

#: NICs and cores of a device; none of either: whatever comes.
Place = tuple[tuple[str, ...], tuple[int, ...]]


def choose_places(
    mesh: jax.sharding.Mesh,
    local_devices: Sequence[Any],
    domain: str | None,
    provider: str | None,
    nics: Sequence[str] | Sequence[Sequence[str]] | None,
    cpus: Sequence[int] | None,
    *,
    machine: Machine | None = None,
) -> list[Place]:
    """What was asked for, by the arguments of a Fabric or by JAX_FABRIC_NICS; else the nearest.

    Args:
      mesh: of the fabric.
      local_devices: those of this process.
      domain: as of Fabric, like the next three.
      provider: see there.
      nics: see there.
      cpus: see there.
      machine: default: this one.

    Returns:
      For each local device.

    Raises:
      InvalidArgument: an argument, JAX_FABRIC_NICS or CUDA_VISIBLE_DEVICES makes no sense.
    """
    machine = Machine.read() if machine is None else machine
    kind, provider, library, groups, exclude = _core.transport(domain, provider)
    if nics is not None:
        said = NicSelection.make(nics)
    elif kind == "local":
        said = NicSelection()
    else:
        said = NicSelection(tuple(map(tuple, groups)), tuple(exclude))
    # Others than the system's library and Amazon's provider have NICs that /sys does not know.
    in_sysfs = provider.startswith("efa") or (kind == "connectx" and not library)
    places = []
    for number, device in enumerate(local_devices):
        if said.groups:
            names = said.of_device(number, len(local_devices))
        elif in_sysfs:
            names = _nearest(machine, kind, mesh, device, said.exclude)
        else:
            names = ()
        if said.exclude and not names:
            raise InvalidArgument(
                f"JAX_FABRIC_NICS=^{','.join(said.exclude)}: no NIC of domain={kind!r} is left in "
                f"/sys/class/infiniband: name those to use, without ^"
            )
        cores = (
            _near_cores(machine, device, names)
            if cpus is None
            else tuple(integer("cpus", cpu) for cpu in cpus)
        )
        places.append((names, cores))
    return places


def _nearest(
    machine: Machine, kind: Any, mesh: jax.sharding.Mesh, device: Any, exclude: Sequence[str]
) -> tuple[str, ...]:
    if device.platform == "gpu":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return nics_of_gpu(machine, kind, device.local_hardware_id, visible, exclude)
    position = [each.id for each in mesh.devices.flat].index(device.id)
    return nics_of_cpu_device(machine, kind, position, mesh.devices.size, exclude)


def _near_cores(machine: Machine, device: Any, nics: Sequence[str]) -> tuple[int, ...]:
    if device.platform == "gpu":
        try:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            return cpus_of_gpu(machine, device.local_hardware_id, visible)
        except InvalidArgument:
            return ()  # CUDA has understood it, as parts of GPUs (MIG): no table of ours has them
    near = next((nic.pci for nic in machine.nics if nic.name in nics), None)
    return tuple(sorted(set(machine.cpus_near(near)) & os.sched_getaffinity(0)))
