"""Custom calls as JAX functions: the one place that talks to ``jax.ffi``.

Every call is an ordinary operation without side effects: an ``int32[1]`` token among its operands and
results is what orders it, and what keeps it alive.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jax_fabric import _core, compat

_registered = threading.Event()
_registration = threading.Lock()


def register_targets() -> None:
    """Registers the custom calls with XLA; once a process, and not before a backend exists.

    JAX queues registrations made earlier and replays targets before the types that they need.
    """
    with _registration:
        if _registered.is_set():
            return
        jax.devices("cpu")
        for name, (type_id, type_info) in _core.ffi_types().items():
            jax.ffi.register_ffi_type(
                name, {"type_id": type_id, "type_info": type_info}, platform="cpu"
            )
        for name, handlers in _core.ffi_targets().items():
            jax.ffi.register_ffi_target(name, handlers, platform="cpu")
        _registered.set()


def ticket(
    rank: jax.Array, dependencies: Sequence[jax.Array], *, context: int, channel: int
) -> jax.Array:
    """Takes a number for the next exchange on a channel once all dependencies are there.

    Args:
      rank: int32[], ``lax.axis_index`` of the communicator's axis.
      dependencies: arrays of any shape and dtype; only their being there matters.
      context: handle of the context.
      channel: index of the channel.

    Returns:
      int32[1]: the number, equal on all ranks for the same call.
    """
    return compat.ticket_p.bind(rank, *dependencies, context=context, channel=channel)


def call(
    target: str,
    operands: Sequence[jax.Array],
    results: Sequence[tuple[Sequence[int], Any]],
    **attributes: Any,
) -> tuple[jax.Array, ...]:
    """Calls a custom call target.

    Args:
      target: its registered name.
      operands: arrays; all vary over the same mesh axes.
      results: shape and dtype of each result.
      **attributes: static integers (64 bits) and booleans.

    Returns:
      One array for each entry of ``results``, varying over the same axes as the operands.
    """
    types = [compat.result_type(operands[0], shape, dtype) for shape, dtype in results]
    attributes = {
        name: value if isinstance(value, (bool, np.bool_)) else np.int64(value)
        for name, value in attributes.items()
    }
    # XLA may clone a call whose operand is a slice or whose result feeds an update; the barriers forbid it.
    operands = lax.optimization_barrier(tuple(operands))
    out = jax.ffi.ffi_call(target, types)(*operands, **attributes)
    return tuple(lax.optimization_barrier(tuple(out)))
