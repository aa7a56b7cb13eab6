"""NICs of a machine that can write into other machines' memory."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import Literal

from jax_fabric.topology.sysfs import PciLocation, Sysfs

Family = Literal["efa", "connectx", "other"]

_CLASS = ("sys", "class", "infiniband")
_AMAZON = "0x1d0f"


@dataclasses.dataclass(frozen=True)
class Gid:
    """An address of a port; empty entries of the table are left away.

    Attributes:
      index: in the port's table.
      address: its 128 bits.
      kind: "RoCE v2", "IB/RoCE v1", or None where the driver does not say.
      interface: the network interface that it is of, or None.
    """

    index: int
    address: ipaddress.IPv6Address
    kind: str | None = None
    interface: str | None = None

    @property
    def is_global(self) -> bool:
        """Whether it reaches farther than its own link."""
        return not self.address.is_link_local


@dataclasses.dataclass(frozen=True)
class Port:
    """A port of a NIC.

    Attributes:
      number: from 1.
      state: "ACTIVE", "DOWN", "INIT", "ARMED", ... as the kernel names it.
      link_layer: "InfiniBand", "Ethernet", or "Unknown" (EFA).
      rate_gbps: 10^9 bits a second; 0 where the driver does not say. A port that is down may say
        less than it can.
      gids: its addresses.
      interface: its network interface, or None.
      mtu_bytes: of that interface, or None.
    """

    number: int
    state: str
    link_layer: str
    rate_gbps: float
    gids: tuple[Gid, ...] = ()
    interface: str | None = None
    mtu_bytes: int | None = None

    @property
    def active(self) -> bool:
        """Whether it can send."""
        return self.state == "ACTIVE"


@dataclasses.dataclass(frozen=True)
class Nic:
    """A device of /sys/class/infiniband.

    Attributes:
      name: libibverbs' name, "mlx5_0".
      family: "efa"; "connectx": any NIC with reliable connections and datagrams (InfiniBand,
        RoCE); "other": none of ours (iWARP, usNIC).
      driver: of the kernel; None: there is no hardware below it (soft-RoCE).
      model: vendor and device of PCI, "0x15b3:0x1021"; empty without hardware.
      pci: where it is, or None.
      ports: rising.
    """

    name: str
    family: Family
    driver: str | None
    model: str
    pci: PciLocation | None
    ports: tuple[Port, ...]

    @property
    def port(self) -> Port | None:
        """The one that would be used: the first active one, else the first."""
        return next((port for port in self.ports if port.active), next(iter(self.ports), None))

    @property
    def active(self) -> bool:
        """Whether any port can send."""
        return any(port.active for port in self.ports)

    @property
    def numa_node(self) -> int:
        """-1 where the machine does not say."""
        return self.pci.numa_node if self.pci else -1


def find_nics(sysfs: Sysfs) -> tuple[Nic, ...]:
    """All devices of /sys/class/infiniband, by name."""
    return tuple(_read(sysfs, name) for name in sysfs.names(*_CLASS))


def _read(sysfs: Sysfs, name: str) -> Nic:
    device = (*_CLASS, name, "device")
    driver = sysfs.link_name(*device, "driver")
    vendor, model = sysfs.text(*device, "vendor"), sysfs.text(*device, "device")
    ports = tuple(_read_port(sysfs, name, number) for number in sysfs.names(*_CLASS, name, "ports"))
    return Nic(
        name=name,
        family=_family(driver, vendor, sysfs.text(*_CLASS, name, "node_type") or ""),
        driver=driver,
        model=f"{vendor}:{model}" if vendor and model else "",
        pci=sysfs.pci_location(*device),
        ports=ports,
    )


def _family(driver: str | None, vendor: str | None, node_type: str) -> Family:
    if driver == "efa" or (vendor == _AMAZON and "unspecified" in node_type):
        return "efa"
    # "1: CA": InfiniBand and RoCE. iWARP ("4: RNIC") has no datagrams.
    return "connectx" if re.search(r"\bCA\b", node_type) else "other"


def _read_port(sysfs: Sysfs, nic: str, number: str) -> Port:
    folder = (*_CLASS, nic, "ports", number)
    gids = []
    for index in sysfs.names(*folder, "gids"):
        address = _parse_gid(sysfs.text(*folder, "gids", index))
        if address is not None:
            kind = sysfs.text(*folder, "gid_attrs", "types", index)
            interface = sysfs.text(*folder, "gid_attrs", "ndevs", index)
            gids.append(Gid(int(index), address, kind, interface))
    interfaces = [gid.interface for gid in gids if gid.interface]
    interfaces += sysfs.names(*_CLASS, nic, "device", "net")
    interface = interfaces[0] if interfaces else None
    mtu = sysfs.text("sys", "class", "net", interface, "mtu") if interface else None
    return Port(
        number=int(number),
        # "4: ACTIVE", "400 Gb/sec (4X NDR)"
        state=(sysfs.text(*folder, "state") or "").partition(":")[2].strip() or "UNKNOWN",
        link_layer=sysfs.text(*folder, "link_layer") or "Unknown",
        rate_gbps=_leading_number(sysfs.text(*folder, "rate")),
        gids=tuple(gids),
        interface=interface,
        mtu_bytes=int(mtu) if mtu and mtu.isdecimal() else None,
    )


def _parse_gid(text: str | None) -> ipaddress.IPv6Address | None:
    try:
        address = ipaddress.IPv6Address(text or "::")
    except ValueError:
        return None
    # The second: a link-local prefix alone, as some drivers fill their tables.
    return None if int(address) in (0, 0xFE80 << 112) else address


def _leading_number(text: str | None) -> float:
    match = re.match(r"[0-9.]+", text or "")
    return float(match[0]) if match else 0.0
