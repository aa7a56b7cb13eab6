"""GPUs of a machine, and which of them CUDA shows to this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax_fabric.errors import InvalidArgument
from jax_fabric.topology.sysfs import PciLocation, Sysfs

_NVIDIA = "0x10de"
# Of PCI: VGA and 3D controllers. Switches of NVLink have the same vendor and another class.
_CLASSES = ("0x0300", "0x0302")
_DRIVER = ("proc", "driver", "nvidia", "gpus")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU of NVIDIA.

    Attributes:
      index: as CUDA numbers it where all are visible, in the order of PCI addresses.
      pci: where it is.
      uuid: "GPU-...", None where the driver does not say.
      model: "NVIDIA H200", None where the driver does not say.
      driver: of the kernel, "nvidia"; None: none.
    """

    index: int
    pci: PciLocation
    uuid: str | None = None
    model: str | None = None
    driver: str | None = None


def find_gpus(sysfs: Sysfs) -> tuple[Gpu, ...]:
    """The GPUs that this process could use, by PCI address.

    A container may see all of the machine in /sys and get some: the driver's folder in /proc says
    which, and CUDA counts those.
    """
    devices = ("sys", "bus", "pci", "devices")
    served = set(sysfs.names(*_DRIVER))
    found = []
    for address in sysfs.names(*devices):
        if sysfs.text(*devices, address, "vendor") != _NVIDIA:
            continue
        kind = sysfs.text(*devices, address, "class") or ""
        location = sysfs.pci_location(*devices, address)
        if not kind.startswith(_CLASSES) or location is None or (served and address not in served):
            continue
        found.append((location, sysfs.link_name(*devices, address, "driver")))
    found.sort(key=lambda each: each[0].address)
    gpus = []
    for index, (location, driver) in enumerate(found):
        about = _information(sysfs.text(*_DRIVER, location.address, "information"))
        gpus.append(Gpu(index, location, about.get("GPU UUID"), about.get("Model"), driver))
    return tuple(gpus)


def visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA shows, in its order.

    Args:
      gpus: of ``find_gpus``.
      visible: value of CUDA_VISIBLE_DEVICES: indices or UUIDs, or the beginning of a UUID, with
        commas between; None: it is not set. As in CUDA, the first entry that means no GPU ends the
        list.

    Raises:
      InvalidArgument: a GPU is listed twice, or an entry is a part of a GPU (MIG).
    """
    if visible is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG"):
            raise InvalidArgument(
                f"CUDA_VISIBLE_DEVICES={visible!r}: {entry!r} is a part of a GPU (MIG), which has "
                f"no NIC of its own: list whole GPUs"
            )
        gpu = _meant(gpus, entry)
        if gpu is None:
            break
        if gpu in chosen:
            raise InvalidArgument(
                f"CUDA_VISIBLE_DEVICES={visible!r}: {entry!r} is GPU {gpu.index}, which is there "
                f"already: list each once"
            )
        chosen.append(gpu)
    return tuple(chosen)


def _meant(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.isdecimal():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if not entry.startswith("GPU-"):
        return None
    found = [gpu for gpu in gpus if (gpu.uuid or "").startswith(entry)]
    return found[0] if len(found) == 1 else None


def _information(text: str | None) -> dict[str, str]:
    """Lines "Name: value" of the driver; values that it does not know are left away."""
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip(" \t?.-")}
