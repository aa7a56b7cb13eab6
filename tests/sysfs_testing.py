"""Writes the parts of /sys and /proc that the topology reads, for machines that are not here.

Layout, names and spellings are those of Linux 6: devices lie below /sys/devices along their PCIe
path, everything else is a relative link to them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

NVIDIA, MELLANOX, AMAZON, INTEL = "0x10de", "0x15b3", "0x1d0f", "0x8086"
CONNECTX_7, CONNECTX_6, EFA = "0x1021", "0x101b", "0xefa2"

GLOBAL_GID = "0000:0000:0000:0000:0000:ffff:0a00:{0:04x}"
LINK_GID = "fe80:0000:0000:0000:0000:00ff:fe00:{0:04x}"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


class SysfsTree:
    """A machine's files below a folder of the test's."""

    def __init__(self, root: str | os.PathLike[str]):
        self.root = Path(root)
        self._gpus = 0
        self._nics = 0

    def file(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: Path) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))

    def numa_nodes(self, *cpu_lists: str) -> None:
        for index, cpus in enumerate(cpu_lists):
            self.file(f"sys/devices/system/node/node{index}/cpulist", cpus)

    def pci(self, path: str, vendor: str, device: str, kind: str, node: int, driver: str) -> Path:
        """A device below bridges: "pci0000:15/0000:15:01.0/0000:16:00.0"."""
        parts = path.split("/")
        for length in range(2, len(parts)):
            self._pci_device(
                "/".join(parts[:length]), INTEL, "0x352a", "0x060400", node, "pcieport"
            )
        return self._pci_device(path, vendor, device, kind, node, driver)

    def _pci_device(
        self, path: str, vendor: str, device: str, kind: str, node: int, driver: str
    ) -> Path:
        folder = self.root / "sys/devices" / path
        if (folder / "vendor").exists():
            return folder
        relative = f"sys/devices/{path}"
        self.file(f"{relative}/vendor", vendor)
        self.file(f"{relative}/device", device)
        self.file(f"{relative}/class", kind)
        self.file(f"{relative}/numa_node", node)
        self.link(f"sys/bus/pci/devices/{folder.name}", folder)
        drivers = self.root / "sys/bus/pci/drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        self.link(f"{relative}/driver", drivers)
        return folder

    def gpu(self, path: str, node: int = 0, *, driver: str | None = "580.95.05") -> str:
        """A GPU, served by the driver of that version unless it is None; returns its UUID."""
        folder = self.pci(
            path, NVIDIA, "0x2335", "0x030200", node, "nvidia" if driver else "vfio-pci"
        )
        uuid = f"GPU-{self._gpus:08x}-0000-4000-8000-{0xABC0 + self._gpus:012x}"
        if driver:
            self.file(
                f"proc/driver/nvidia/gpus/{folder.name}/information",
                f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 185\nGPU UUID: \t {uuid}\n"
                f"Bus Location: \t {folder.name}\nDevice Minor: \t {self._gpus}\n"
                f"GPU Firmware: \t {driver}\nGPU Excluded:\t No",
            )
            self.file(
                "proc/driver/nvidia/version",
                f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build",
            )
        self._gpus += 1
        return uuid

    def nic(
        self,
        path: str | None,
        name: str,
        *,
        node: int = 0,
        vendor: str = MELLANOX,
        model: str = CONNECTX_7,
        driver: str = "mlx5_core",
        node_type: str = "1: CA",
        link_layer: str = "InfiniBand",
        state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)",
        gids: Sequence[tuple[str, str | None]] | None = None,
        interface: str | None = None,
        mtu: int = 9000,
    ) -> None:
        """A NIC with one port. ``path`` None: without hardware, as soft-RoCE."""
        if path is None:
            device = self.root / "sys/devices/virtual/infiniband" / name
        else:
            parent = self.pci(path, vendor, model, "0x020700", node, driver)
            device = parent / "infiniband" / name
        relative = os.path.relpath(device, self.root)
        self.file(f"{relative}/node_type", node_type)
        if path is not None:
            self.link(f"{relative}/device", parent)
        port = f"{relative}/ports/1"
        self.file(f"{port}/state", state)
        self.file(f"{port}/link_layer", link_layer)
        self.file(f"{port}/rate", rate)
        if gids is None:
            gids = [(LINK_GID.format(self._nics + 1), "IB/RoCE v1")]
        for index, (gid, kind) in enumerate([*gids, (NO_GID, None)]):
            self.file(f"{port}/gids/{index}", gid)
            if kind is not None:
                self.file(f"{port}/gid_attrs/types/{index}", kind)
                if interface:
                    self.file(f"{port}/gid_attrs/ndevs/{index}", interface)
        if interface:
            self.file(f"sys/class/net/{interface}/mtu", mtu)
        self.link(f"sys/class/infiniband/{name}", device)
        self._nics += 1

    def efa(self, path: str, node: int = 0, rate: str = "100 Gb/sec (4X EDR)", **options) -> None:
        """An EFA NIC, named by its bus as Amazon's udev rules do."""
        bus = int(path.rsplit(":", 2)[1], 16)
        self.nic(
            path,
            f"rdmap{bus}s0",
            **{
                "node": node,
                "vendor": AMAZON,
                "model": EFA,
                "driver": "efa",
                "node_type": "7: unspecified",
                "link_layer": "Unknown",
                "rate": rate,
                "gids": [(LINK_GID.format(bus), None)],
                **options,
            },
        )

    def roce(
        self, path: str, name: str, node: int = 0, number: int | None = None, **options
    ) -> None:
        """A NIC of RoCE with the usual table: version 1 and 2, link-local, then global."""
        number = self._nics + 1 if number is None else number
        link, route = LINK_GID.format(number), GLOBAL_GID.format(number)
        self.nic(
            path,
            name,
            **{
                "node": node,
                "link_layer": "Ethernet",
                "interface": f"eth{number}",
                "gids": [
                    (link, "IB/RoCE v1"),
                    (link, "RoCE v2"),
                    (route, "IB/RoCE v1"),
                    (route, "RoCE v2"),
                ],
                **options,
            },
        )


def hgx_connectx(
    root: str | os.PathLike[str], *, down: Sequence[int] = (), roce: bool = False
) -> SysfsTree:
    """8 GPUs, each below a switch with a ConnectX-7, 4 on each CPU, and 2 storage NICs.

    mlx5_0 to mlx5_7 are the GPUs' own, but not in their order, as on real machines; mlx5_8 and
    mlx5_9 are storage: of the same model, on root complexes of their own.
    """
    tree = SysfsTree(root)
    tree.numa_nodes("0-55,112-167", "56-111,168-223")
    add = tree.roce if roce else tree.nic
    for gpu in range(8):
        bus = 0x15 + 0x11 * gpu
        node = gpu // 4
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        tree.gpu(f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0", node)
        state = "1: DOWN" if gpu in down else "4: ACTIVE"
        rate = "10 Gb/sec (4X SDR)" if gpu in down else "400 Gb/sec (4X NDR)"
        nic = f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0"
        add(nic, f"mlx5_{(gpu + 3) % 8}", node=node, state=state, rate=rate)
    for storage in range(2):
        bus = 0xB0 + storage
        add(
            f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 8:02x}:00.0",
            f"mlx5_{8 + storage}",
            node=storage,
        )
    return tree


# Buses of the GPUs of a p5.48xlarge; its four NICs of a GPU have the four before.
_P5_GPU_BUSES = (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)


def p5(root: str | os.PathLike[str], *, nics_per_gpu: int = 4, **options) -> SysfsTree:
    """8 GPUs, each below a bridge with 4 EFA NICs (2: p5en, of twice the rate)."""
    tree = SysfsTree(root)
    tree.numa_nodes("0-47,96-143", "48-95,144-191")
    for gpu, bus in enumerate(_P5_GPU_BUSES):
        node = gpu // 4
        bridge = f"pci0000:{0x40 + gpu:02x}/0000:{0x40 + gpu:02x}:01.0/0000:{bus - 8:02x}:00.0"
        for nic in range(nics_per_gpu):
            tree.efa(f"{bridge}/0000:{bus - nics_per_gpu + nic:02x}:00.0", node, **options)
        tree.gpu(f"{bridge}/0000:{bus:02x}:00.0", node)
    return tree


def p5en(root: str | os.PathLike[str]) -> SysfsTree:
    """8 GPUs, 16 EFA NICs."""
    return p5(root, nics_per_gpu=2, rate="200 Gb/sec (4X HDR)")


def p4d(root: str | os.PathLike[str]) -> SysfsTree:
    """8 GPUs, 4 EFA NICs: two GPUs share a root complex with one; no switch is to be seen."""
    tree = SysfsTree(root)
    tree.numa_nodes("0-23,48-71", "24-47,72-95")
    for pair, bus in enumerate((0x10, 0x20, 0x90, 0xA0)):
        complex_ = f"pci0000:{bus:02x}"
        tree.nic(
            f"{complex_}/0000:{bus:02x}:1b.0",
            f"rdmap{bus}s27",
            node=pair // 2,
            vendor=AMAZON,
            model="0xefa0",
            driver="efa",
            node_type="7: unspecified",
            link_layer="Unknown",
            rate="100 Gb/sec (4X EDR)",
        )
        for gpu in range(2):
            tree.gpu(f"{complex_}/0000:{bus:02x}:{0x1C + gpu:02x}.0", pair // 2)
    return tree


def one_gpu_one_nic(root: str | os.PathLike[str]) -> SysfsTree:
    """A workstation: one CPU, one GPU, one NIC of RoCE, each on a root port of its own."""
    tree = SysfsTree(root)
    tree.numa_nodes("0-31")
    tree.gpu("pci0000:00/0000:00:01.1/0000:01:00.0", 0)
    tree.roce("pci0000:40/0000:40:01.1/0000:41:00.0", "mlx5_0")
    return tree


def flat_virtual_machine(root: str | os.PathLike[str], gpus: int = 4, nics: int = 4) -> SysfsTree:
    """All devices on one bus, and nobody knows of NUMA nodes."""
    tree = SysfsTree(root)
    tree.numa_nodes("0-63")
    for gpu in range(gpus):
        tree.gpu(f"pci0000:00/0000:00:{0x10 + gpu:02x}.0", -1)
    for nic in range(nics):
        tree.roce(f"pci0000:00/0000:00:{0x18 + nic:02x}.0", f"mlx5_{nic}", -1)
    return tree
