"""Which devices a mesh has, and in which order."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_fabric import _core


def platform_of(mesh: jax.sharding.Mesh) -> str:
    """Of all devices: "cpu" or "gpu"."""
    platforms = sorted({device.platform for device in mesh.devices.flat})
    if platforms not in (["cpu"], ["gpu"]):
        raise ValueError(
            f"mesh: devices of platform {', '.join(platforms)}: all must be cpu devices, or all "
            f"NVIDIA gpu devices"
        )
    if platforms == ["gpu"] and not _core.has_cuda():
        raise ValueError(
            "mesh: GPUs, and this jax_fabric was built without CUDA: build it where nvcc is found "
            "(docs/building.md)"
        )
    return platforms[0]


def slices(mesh: jax.sharding.Mesh, axis_name: str) -> list[list[Any]]:
    """Devices along the axis, one list for each position on the other axes."""
    axis = mesh.axis_names.index(axis_name)
    rows = np.moveaxis(mesh.devices, axis, -1).reshape(-1, mesh.devices.shape[axis])
    return [list(row) for row in rows]
