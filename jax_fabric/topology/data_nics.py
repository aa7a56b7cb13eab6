"""Which NICs of a machine carry rows, and why the others do not."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping

from jax_fabric.topology.distance import Distance
from jax_fabric.topology.machine import Machine
from jax_fabric.topology.nic import Family, Nic

# Link layer and model: what two NICs have in common that talk to the same kind of network.
_Kind = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class DataNics:
    """The NICs of a machine, divided.

    Attributes:
      usable: those that carry rows, by name.
      installed: how many the machine has of these, those included whose link is down.
      left_out: the others, with the reason.
    """

    usable: tuple[Nic, ...]
    installed: int
    left_out: Mapping[str, str]


def find_data_nics(machine: Machine, family: Family, exclude: Collection[str] = ()) -> DataNics:
    """Divides the NICs of a machine.

    Rows go over NICs of one kind. The kind with the highest rate in sum is taken: storage and
    management have fewer NICs or slower ones, or another link layer. Where GPUs have NICs of their
    own, one that is farther than that from every GPU is for something else, too.

    Args:
      machine: with all its GPUs, also those that this process does not see.
      family: of NICs.
      exclude: names that must not be used.
    """
    left_out: dict[str, str] = {}
    candidates = []
    for nic in machine.nics:
        if nic.name in exclude:
            left_out[nic.name] = "excluded"
        elif nic.family != family:
            left_out[nic.name] = f"is no NIC of {family}"
        else:
            candidates.append(nic)
    rates = _total_rates(candidates)
    if not rates:
        left_out |= {nic.name: _why_down(nic) for nic in candidates}
        return DataNics((), len(candidates), left_out)
    best = max(rates, key=lambda each: (rates[each], each))
    kind, rate = best[:2], best[2]
    same_kind = []
    for nic in candidates:
        if _kind(nic) != kind:
            left_out[nic.name] = f"{_kind_words(_kind(nic))}; rows go over {_kind_words(kind)}"
        elif nic.active and nic.port.rate_gbps != rate:
            left_out[nic.name] = f"runs at {nic.port.rate_gbps:g} Gb/s, the others at {rate:g}"
        else:
            same_kind.append(nic)
    near = _near_a_gpu(machine, same_kind)
    for nic in same_kind:
        if nic not in near:
            left_out[nic.name] = "farther from every GPU than its own NICs"
        elif not nic.active:
            left_out[nic.name] = _why_down(nic)
    usable = tuple(nic for nic in near if nic.active)
    return DataNics(usable, len(near), left_out)


def _total_rates(nics: Iterable[Nic]) -> Mapping[tuple[str, str, float], float]:
    """Of active NICs, for each kind and rate; where rates are unknown, their number counts."""
    totals: dict[tuple[str, str, float], float] = collections.defaultdict(float)
    for nic in nics:
        if nic.active:
            totals[(*_kind(nic), nic.port.rate_gbps)] += nic.port.rate_gbps + 1e-3
    return totals


def _near_a_gpu(machine: Machine, nics: list[Nic]) -> list[Nic]:
    if not machine.gpus or not nics:
        return nics
    near: set[str] = set()
    for gpu in machine.gpus:
        distances: dict[Distance, list[str]] = collections.defaultdict(list)
        for nic in nics:
            distances[machine.distance(gpu.pci, nic.pci)].append(nic.name)
        near.update(distances[min(distances)])
    return [nic for nic in nics if nic.name in near]


def _kind(nic: Nic) -> _Kind:
    return (nic.port.link_layer if nic.port else "Unknown", nic.model)


def _kind_words(kind: _Kind) -> str:
    link_layer, model = kind
    return f"{link_layer} {model}".strip()


def _why_down(nic: Nic) -> str:
    return f"its link is {nic.port.state}" if nic.port else "has no port"
