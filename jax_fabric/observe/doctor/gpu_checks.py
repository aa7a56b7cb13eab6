"""Checks of GPUs and of what NICs need to reach their memory."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator

from jax_fabric import _core
from jax_fabric.observe.doctor.finding import Finding
from jax_fabric.topology import Machine, Sysfs

_DMABUF_KERNEL = (5, 12)
_DMABUF_DRIVER = 515
_DMABUF_ATTRIBUTE = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
_ORDER_ATTRIBUTE = 118  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
_ORDERED_FOR_OWNER = 100
_IN_PLACE_OF_IT = "rows can only go through host memory: jf.Fabric(mesh, force_staged=True)"


def gpu_findings(sysfs: Sysfs, machine: Machine, has_nics: bool) -> Iterator[Finding]:
    """What concerns GPUs; nothing on a machine without.

    Args:
      sysfs: the machine's files.
      machine: what the topology says.
      has_nics: whether there are NICs that could reach them.
    """
    if not machine.gpus:
        yield Finding("GPUs", "devices", "note", "none: programs run on CPUs")
        return
    version = sysfs.text("proc", "driver", "nvidia", "version") or ""
    yield from _devices(machine)
    yield _driver(version)
    if str(sysfs.root) == "/":
        yield _kernels()
    if version:
        dmabuf = _dmabuf(sysfs, version)
        yield from _direct(sysfs, dmabuf, has_nics)
        if has_nics and str(sysfs.root) == "/":
            yield from _order()
        yield _gdrcopy(sysfs)


def _devices(machine: Machine) -> Iterator[Finding]:
    for gpu in machine.gpus:
        node = f"node {gpu.pci.numa_node}" if gpu.pci.numa_node >= 0 else "node unknown"
        value = f"{gpu.model or 'model unknown'} at {gpu.pci.address}, {node}"
        if gpu.driver == "nvidia":
            yield Finding(f"GPU {gpu.index}", "device", "ok", value)
        else:
            yield Finding(
                f"GPU {gpu.index}",
                "device",
                "problem",
                f"{value}; driver: {gpu.driver or 'none'}",
                f"sudo modprobe nvidia; dmesg | grep -i nvrm; lspci -nnks {gpu.pci.address}",
            )


def _driver(version: str) -> Finding:
    number = re.search(r"\s(\d+(?:\.\d+)+)\s", version)
    if number is None:
        return Finding(
            "GPUs",
            "driver",
            "problem",
            "not loaded",
            "sudo apt-get install nvidia-open (NVIDIA's repository), then sudo modprobe nvidia; "
            "docker run --gpus all",
        )
    kind = "open" if "Open Kernel Module" in version else "closed"
    return Finding("GPUs", "driver", "ok", f"{number[1]}, {kind} kernel modules")


def _kernels() -> Finding:
    if _core.has_cuda():
        return Finding("GPUs", "CUDA kernels", "ok", "this jax_fabric has them")
    return Finding(
        "GPUs",
        "CUDA kernels",
        "problem",
        "this jax_fabric was built without them",
        "pip install . where nvcc is found (docs/building.md)",
    )


def _dmabuf(sysfs: Sysfs, version: str) -> tuple[bool, str]:
    """Whether GPU memory can be exported to NICs, and how we know."""
    if str(sysfs.root) == "/" and (asked := _ask_cuda(_DMABUF_ATTRIBUTE)) is not None:
        return bool(asked), "CUDA says so"
    kernel = re.match(r"(\d+)\.(\d+)", sysfs.text("proc", "sys", "kernel", "osrelease") or "")
    number = re.search(r"\s(\d+)\.\d", version)
    if kernel and (int(kernel[1]), int(kernel[2])) < _DMABUF_KERNEL:
        return False, f"needs Linux {'.'.join(map(str, _DMABUF_KERNEL))}, and this is {kernel[0]}"
    if "Open Kernel Module" not in version:
        return False, "needs the open kernel modules"
    if number is None or int(number[1]) < _DMABUF_DRIVER:
        return False, f"needs driver {_DMABUF_DRIVER}"
    return True, "by kernel and driver"


def _ask_cuda(attribute: int) -> int | None:
    """An attribute of the first GPU; None: CUDA does not start."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    value = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0):
        return None
    return value.value


def _order() -> Iterator[Finding]:
    """Whether kernels see what NICs wrote before they are told."""
    order = _ask_cuda(_ORDER_ATTRIBUTE)
    if order is None:
        return
    if order >= _ORDERED_FOR_OWNER:
        yield Finding("GPUs", "order of NICs' writes", "ok", "kept for the GPU's own kernels")
    else:
        what = "not kept: kernels may read what was there before"
        yield Finding("GPUs", "order of NICs' writes", "problem", what, _IN_PLACE_OF_IT)


def _direct(sysfs: Sysfs, dmabuf: tuple[bool, str], has_nics: bool) -> Iterator[Finding]:
    """The two ways by which a NIC gets at GPU memory: one is enough."""
    possible, why = dmabuf
    peermem = sysfs.path("sys", "module", "nvidia_peermem").exists()
    yield Finding("GPUs", "dmabuf", "ok" if possible else "note", why)
    if peermem:
        yield Finding("GPUs", "nvidia-peermem", "ok", "loaded")
    elif possible or not has_nics:
        yield Finding("GPUs", "nvidia-peermem", "note", "not loaded")
    else:
        yield Finding(
            "GPUs",
            "nvidia-peermem",
            "problem",
            f"not loaded, and no dmabuf: NICs cannot reach GPU memory, {_IN_PLACE_OF_IT}",
            "sudo modprobe nvidia-peermem, or the open kernel modules (sudo apt-get install "
            "nvidia-open)",
        )


def _gdrcopy(sysfs: Sysfs) -> Finding:
    if sysfs.path("sys", "module", "gdrdrv").exists():
        return Finding("GPUs", "GDRCopy", "ok", "loaded; libgdrapi is needed, too")
    return Finding(
        "GPUs", "GDRCopy", "note", "not loaded: the host tells kernels in its own memory"
    )
