"""Checks of NICs: link, addresses, speed, and which GPU each is for."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable, Iterator, Mapping

from jax_fabric.observe.doctor.finding import Finding
from jax_fabric.topology import Assignment, Machine, Nic, Port, Sysfs

# RoCE's largest MTU of 4096 bytes, and its headers.
_LEAST_MTU_BYTES = 4200
_CLASS = ("sys", "class", "infiniband")


def nic_findings(
    sysfs: Sysfs, machine: Machine, assignments: Mapping[str, Assignment]
) -> Iterator[Finding]:
    """What concerns NICs.

    Args:
      sysfs: the machine's files.
      machine: what the topology says.
      assignments: of each family that is there; devices are the machine's GPUs.
    """
    if not machine.nics:
        yield Finding(
            "NICs",
            "devices",
            "note",
            "none in /sys/class/infiniband: transfers stay on this machine",
        )
        return
    for nic in machine.nics:
        yield from _one(sysfs, machine, nic, assignments)


def _one(
    sysfs: Sysfs, machine: Machine, nic: Nic, assignments: Mapping[str, Assignment]
) -> Iterator[Finding]:
    subject = f"NIC {nic.name}"
    assigned = assignments.get(nic.family)
    used_for = _used_for(machine, nic, assigned)
    kind = f"{nic.family}, of software"
    if nic.pci:
        node = f"node {nic.numa_node}" if nic.numa_node >= 0 else "node unknown"
        kind = f"{nic.family}, driver {nic.driver}, {nic.model} at {nic.pci.address}, {node}"
    if nic.family == "other":
        why = "no reliable connections with datagrams (iWARP?): jax_fabric does not use it"
        yield Finding(subject, "device", "note", f"{kind}; {why}")
        return
    yield Finding(subject, "device", "ok", kind)
    port = nic.port
    if port is None:
        yield Finding(
            subject, "link", "problem", "no port", f"dmesg | grep {nic.driver or nic.name}"
        )
        return
    yield from map(_relevant(nic, assigned), _port_findings(sysfs, subject, nic, port, assigned))
    yield Finding(subject, "used for", "note", used_for)


def _port_findings(
    sysfs: Sysfs, subject: str, nic: Nic, port: Port, assigned: Assignment | None
) -> Iterator[Finding]:
    yield _link(subject, nic, port, assigned)
    if nic.active and nic.family == "connectx" and port.link_layer == "Ethernet":
        yield _gid(subject, nic, port)
        yield _mtu(subject, port)
    elif nic.active and not port.gids:
        fix = f"sudo modprobe -r {nic.driver} && sudo modprobe {nic.driver}; dmesg"
        yield Finding(subject, "GID", "problem", "none", fix)
    if str(sysfs.root) == "/":
        yield from _device_file(sysfs, subject, nic)


def _relevant(nic: Nic, assigned: Assignment | None) -> Callable[[Finding], Finding]:
    """What is wrong with a NIC that carries no rows anyway (storage, management) is a note."""
    why = assigned.left_out.get(nic.name, "") if assigned else ""
    if not why or why.startswith(("its link is", "runs at")):
        return lambda finding: finding
    return lambda finding: dataclasses.replace(
        finding, state="ok" if finding.state == "ok" else "note"
    )


def _link(subject: str, nic: Nic, port: Port, assigned: Assignment | None) -> Finding:
    value = f"port {port.number} {port.state}, {port.link_layer}, {port.rate_gbps:g} Gb/s"
    if not port.active:
        return Finding(subject, "link", "problem", value, _link_fix(nic, port))
    why = assigned.left_out.get(nic.name, "") if assigned else ""
    if why.startswith("runs at"):
        return Finding(
            subject,
            "link",
            "warning",
            f"{value}; {why}",
            "look at cable and switch (mlxlink -d DEVICE; ethtool INTERFACE); if it is storage, "
            f"say so: JAX_FABRIC_NICS=^{nic.name}",
        )
    return Finding(subject, "link", "ok", value)


def _link_fix(nic: Nic, port: Port) -> str:
    if port.link_layer == "InfiniBand" and port.state in ("INIT", "ARMED"):
        return "start a subnet manager (sudo systemctl start opensm, or the switch's)"
    if nic.family == "efa":
        return "sudo modprobe efa; the instance's network interfaces must be of the type EFA"
    up = f"sudo ip link set {port.interface} up; " if port.interface else ""
    return f"{up}look at cable and switch port; ibstat {nic.name}"


def _gid(subject: str, nic: Nic, port: Port) -> Finding:
    routable = [gid for gid in port.gids if gid.kind == "RoCE v2" and gid.is_global]
    local = [gid for gid in port.gids if gid.kind == "RoCE v2" and not gid.is_global]
    interface = port.interface or "INTERFACE"
    fix = f"sudo ip addr add ADDRESS/PREFIX dev {interface}"
    if routable:
        address = routable[0].address
        shown = address.ipv4_mapped or address
        return Finding(subject, "GID", "ok", f"RoCE v2, {shown} (index {routable[0].index})")
    if local:
        value = f"RoCE v2, of this link alone (index {local[0].index}): no way beyond a router"
        return Finding(subject, "GID", "warning", value, fix)
    table = f"/sys/class/infiniband/{nic.name}/ports/{port.number}/gids"
    return Finding(subject, "GID", "problem", f"none of RoCE v2 in {table}", fix)


def _mtu(subject: str, port: Port) -> Finding:
    if port.mtu_bytes is None:
        return Finding(subject, "MTU", "note", "unknown: no network interface is to be seen")
    value = f"{port.mtu_bytes} bytes on {port.interface}"
    if port.mtu_bytes >= _LEAST_MTU_BYTES:
        return Finding(subject, "MTU", "ok", value)
    return Finding(
        subject,
        "MTU",
        "warning",
        f"{value}: packets of less than 4096 bytes",
        f"sudo ip link set {port.interface} mtu 9000, and the same at switches and peers",
    )


def _device_file(sysfs: Sysfs, subject: str, nic: Nic) -> Iterator[Finding]:
    """Containers often see /sys of all of the machine and no device files."""
    names = sysfs.names(*_CLASS, nic.name, "device", "infiniband_verbs")
    names += [
        name
        for name in sysfs.names("sys", "class", "infiniband_verbs")
        if not names and sysfs.text("sys", "class", "infiniband_verbs", name, "ibdev") == nic.name
    ]
    for name in names[:1]:
        path = f"/dev/infiniband/{name}"
        try:
            there = stat.S_ISCHR(os.stat(path).st_mode)
        except OSError:
            there = False
        if there and os.access(path, os.R_OK | os.W_OK):
            yield Finding(subject, "device file", "ok", path)
        else:
            fix = "docker run --device=/dev/infiniband"
            if there:
                fix = f'sudo chmod a+rw {path} (udev: KERNEL=="uverbs*", MODE="0666")'
            value = f"{path} {'may not be opened' if there else 'is not there'}"
            yield Finding(subject, "device file", "problem", value, fix)


def _used_for(machine: Machine, nic: Nic, assigned: Assignment | None) -> str:
    if assigned is None:
        return "nothing"
    if nic.name in assigned.left_out:
        return f"nothing: {assigned.left_out[nic.name]}"
    users = [
        f"GPU {gpu.index} ({machine.distance(gpu.pci, nic.pci).words})"
        for gpu, names in zip(machine.gpus, assigned.nics, strict=True)
        if nic.name in names
    ]
    return ", ".join(users) or "CPU devices, by turns"
