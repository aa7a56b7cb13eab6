"""Reads what the kernel says about the machine: /sys and /proc, under any root."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from pathlib import Path

_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")

#: Of NUMA nodes, where the machine does not say: most virtual machines.
UNKNOWN_NODE = -1


@dataclasses.dataclass(frozen=True)
class PciLocation:
    """Where a device is.

    Attributes:
      path: from the root complex ("pci0000:15") over bridges to the device itself
        ("0000:18:00.0").
      numa_node: -1 where the machine does not say.
    """

    path: tuple[str, ...]
    numa_node: int = UNKNOWN_NODE

    @property
    def address(self) -> str:
        """Of the device: "0000:18:00.0"."""
        return self.path[-1]

    @property
    def bus(self) -> int:
        """Domain and bus as one number: close ones are often close in the machine."""
        domain, bus, _ = self.address.split(":")
        return int(domain, 16) << 8 | int(bus, 16)


@dataclasses.dataclass(frozen=True)
class NumaNode:
    """A NUMA node.

    Attributes:
      index: the kernel's number of it.
      cpus: its cores, rising.
    """

    index: int
    cpus: tuple[int, ...]


class Sysfs:
    """The files of a machine: this one, or a copy of another one's below some folder."""

    def __init__(self, root: str | os.PathLike[str] = "/"):
        """Nothing is read yet.

        Args:
          root: the folder that has ``sys`` and ``proc``.
        """
        self.root = Path(root)

    def path(self, *parts: str) -> Path:
        """A path below the root."""
        return self.root.joinpath(*parts)

    def text(self, *parts: str) -> str | None:
        """Content of a file without white space at the ends; None: it cannot be read."""
        try:
            return self.path(*parts).read_text(errors="replace").strip()
        except OSError:  # also what drivers answer for attributes that make no sense just now
            return None

    def names(self, *parts: str) -> list[str]:
        """Names in a folder, in the order of the numbers in them; none where it is not there."""
        try:
            found = os.listdir(self.path(*parts))
        except OSError:
            return []
        return sorted(found, key=_natural)

    def link_name(self, *parts: str) -> str | None:
        """The last part of what a symbolic link leads to; None: there is no link."""
        try:
            return os.path.basename(os.readlink(self.path(*parts)))
        except OSError:
            return None

    def pci_location(self, *parts: str) -> PciLocation | None:
        """Where the device with this folder is; None: it is no PCI device."""
        folder = Path(os.path.realpath(self.path(*parts)))
        names = folder.parts
        starts = [i for i, name in enumerate(names) if _ROOT_COMPLEX.fullmatch(name)]
        if not starts or starts[-1] == len(names) - 1:
            return None
        try:
            node = int((folder / "numa_node").read_text())
        except (OSError, ValueError):
            node = UNKNOWN_NODE
        return PciLocation(names[starts[-1] :], max(node, UNKNOWN_NODE))

    def numa_nodes(self) -> tuple[NumaNode, ...]:
        """All nodes that have cores; none where the kernel knows of none."""
        folder = ("sys", "devices", "system", "node")
        nodes = []
        for name in self.names(*folder):
            if match := re.fullmatch(r"node(\d+)", name):
                cpus = parse_cpu_list(self.text(*folder, name, "cpulist") or "")
                if cpus:
                    nodes.append(NumaNode(int(match[1]), cpus))
        return tuple(nodes)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Cores of a list as the kernel writes it: "0-3,8" is 0, 1, 2, 3 and 8.

    Raises:
      ValueError: it is no such list.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The reverse of ``parse_cpu_list``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _natural(name: str) -> list[tuple[int, str]]:
    """Order in which mlx5_2 comes before mlx5_10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
