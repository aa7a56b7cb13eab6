"""Which NICs belong to which GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jax_fabric.topology.data_nics import DataNics
from jax_fabric.topology.distance import hops
from jax_fabric.topology.machine import Machine
from jax_fabric.topology.nic import Nic
from jax_fabric.topology.sysfs import PciLocation

#: NICs of a group of the engine.
MOST_NICS = 4

# What a step in each of these counts, so that the first always decides before the next.
_DISTANCE, _HOP, _USE, _MOST_BUSES = 1e9, 1e6, 1e4, 9999.0


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The NICs of each device.

    Attributes:
      nics: names, for each device in order, the nearest first; as many for each.
      left_out: NICs that no device has, with the reason.
    """

    nics: tuple[tuple[str, ...], ...]
    left_out: Mapping[str, str]


def assign_to_gpus(machine: Machine, data: DataNics, nics_per_gpu: int | None = None) -> Assignment:
    """NICs of all GPUs of a machine, also of those that this process does not see.

    So processes that see a GPU each take different NICs without a word to each other.

    Args:
      machine: the machine.
      data: its NICs that carry rows.
      nics_per_gpu: 1 to 4; default: as many as there are for each GPU. NICs whose link is down
        count there, so that machines of one type come to the same number, which peers must have.
    """
    gpus = machine.gpus
    if nics_per_gpu is None:
        nics_per_gpu = max(1, min(MOST_NICS, data.installed // max(1, len(gpus))))
    return _assign(machine, [gpu.pci for gpu in gpus], data, nics_per_gpu)


def assign_to_cpu_devices(
    machine: Machine, data: DataNics, devices: int, nics_per_device: int | None = None
) -> Assignment:
    """NICs of devices that have no place of their own, JAX's CPU devices.

    Args:
      machine: the machine.
      data: its NICs that carry rows.
      devices: how many share them.
      nics_per_device: 1 to 4; default: 1, since nobody knows how many other processes there are.
    """
    return _assign(machine, [None] * devices, data, nics_per_device or 1)


def _assign(
    machine: Machine, devices: Sequence[PciLocation | None], data: DataNics, per_device: int
) -> Assignment:
    """Gives every device as many NICs, every NIC to about as many devices, and the nearest ones.

    In rounds, one NIC for each device in each: the choice of least total cost, among those by which
    no NIC gets more devices than its share, rounded up.
    """
    nics = data.usable
    per_device = min(per_device, len(nics))
    if not nics or not devices:
        return Assignment(((),) * len(devices), dict(data.left_out))
    share = -(-len(devices) * per_device // len(nics))
    cost = np.array([[_cost(machine, device, nic) for nic in nics] for device in devices])
    taken = np.zeros((len(devices), len(nics)), dtype=bool)
    for _ in range(per_device):
        one_more = _round(cost, taken, share)
        if (one_more & taken).any():
            # What is left of the shares is of NICs that some device has already.
            one_more = _round(cost, taken, share + 1)
        taken |= one_more
    chosen = tuple(
        tuple(nics[i].name for i in sorted(np.flatnonzero(row), key=lambda i, c=costs: (c[i], i)))
        for row, costs in zip(taken, cost, strict=True)
    )
    unused = {nics[i].name for i in np.flatnonzero(~taken.any(axis=0))}
    too_many = f"{len(nics)} NICs for {len(devices)} devices of {per_device} each"
    return Assignment(chosen, dict(data.left_out) | dict.fromkeys(sorted(unused), too_many))


def _round(cost: np.ndarray, taken: np.ndarray, share: int) -> np.ndarray:
    """One more NIC for each device: which it is, as bool[devices, nics]."""
    from scipy.optimize import linear_sum_assignment  # takes a while to import

    used = taken.sum(axis=0)
    # A column for each further device that a NIC may have; the later ones cost more.
    columns = [(nic, use) for nic in range(cost.shape[1]) for use in range(used[nic], share)]
    nic_of = np.array([nic for nic, _ in columns])
    uses = np.array([use for _, use in columns])
    impossible = 1e3 * _DISTANCE
    costs = cost[:, nic_of] + uses * _USE + np.where(taken[:, nic_of], impossible, 0.0)
    devices, chosen = linear_sum_assignment(costs)
    result = np.zeros_like(taken)
    result[devices, nic_of[chosen]] = True
    return result


def _cost(machine: Machine, device: PciLocation | None, nic: Nic) -> float:
    buses = abs(device.bus - nic.pci.bus) if device and nic.pci else 0
    return (
        _DISTANCE * machine.distance(device, nic.pci)
        + _HOP * hops(device, nic.pci)
        + min(buses, _MOST_BUSES)
    )
