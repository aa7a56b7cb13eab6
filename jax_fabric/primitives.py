"""Custom calls as JAX functions: the one place that talks to ``jax.ffi``.

Every call is an ordinary operation without side effects: an ``int32[1]`` token among its operands
and results is what orders it, and what keeps it alive.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_fabric import _core, compat

_registered: set[str] = set()
_registration = threading.Lock()
#: What jax.ffi calls the platforms of jax.Device.platform.
_FFI_PLATFORMS = {"cpu": "cpu", "gpu": "CUDA"}


def register_targets(platform: str) -> None:
    """Registers the custom calls of a platform with XLA; once a process.

    Not before a backend exists: JAX queues registrations made earlier and replays targets before
    the types that they need.

    Args:
      platform: "cpu" or "gpu".
    """
    with _registration:
        if platform in _registered:
            return
        jax.devices(platform)
        ffi_platform = _FFI_PLATFORMS[platform]
        # Only calls on the CPU have a state, and so a type of it.
        types = _core.ffi_types() if platform == "cpu" else {}
        for name, (type_id, type_info) in types.items():
            jax.ffi.register_ffi_type(
                name, {"type_id": type_id, "type_info": type_info}, platform=ffi_platform
            )
        for name, handlers in _core.ffi_targets(ffi_platform).items():
            jax.ffi.register_ffi_target(name, handlers, platform=ffi_platform)
        _registered.add(platform)


def call(
    target: str,
    operands: Sequence[jax.Array],
    results: Sequence[tuple[Sequence[int], Any]],
    *,
    aliases: Sequence[tuple[int, int]] = (),
    **attributes: int | bool,
) -> tuple[jax.Array, ...]:
    """Calls a custom call target of the fabric.

    Args:
      target: its registered name.
      operands: arrays.
      results: shape and dtype of each result.
      aliases: pairs of an operand and the result that takes its place in memory, by their indices.
      **attributes: static; integers have 64 bits in the call.

    Returns:
      One array for each entry of ``results``, varying over the mesh axes of all operands.
    """
    types = tuple((tuple(shape), np.dtype(dtype)) for shape, dtype in results)
    values = tuple(
        (name, value if isinstance(value, bool) else np.int64(value))
        for name, value in sorted(attributes.items())
    )
    # XLA may clone a call whose operand is a slice or whose result feeds an update; the barriers
    # forbid it.
    operands = lax.optimization_barrier(compat.make_varying(*operands))
    out = compat.fabric_call_p.bind(
        *operands, target=target, results=types, attributes=values, aliases=tuple(aliases)
    )
    return tuple(lax.optimization_barrier(tuple(out)))
