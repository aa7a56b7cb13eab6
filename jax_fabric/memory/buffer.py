"""Arrays and buffers as ranges of memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_fabric.errors import InvalidArgument


def array_of(buffer: Any) -> np.ndarray:
    """A NumPy view of the memory of an array or buffer; nothing is copied.

    Args:
      buffer: a NumPy array, anything with the buffer protocol, or a jax.Array on one CPU device
        (whose view is read-only).

    Raises:
      InvalidArgument: it is none of these, empty, not contiguous, or has Python objects in it.
    """
    array = _view(buffer)
    if array.dtype.hasobject:
        raise InvalidArgument(f"buffer: dtype {array.dtype} has Python objects in it")
    if array.nbytes == 0:
        raise InvalidArgument(f"buffer: shape {array.shape} has no bytes to register")
    if not array.flags.forc:
        raise InvalidArgument(
            f"buffer: shape {array.shape} with strides {array.strides} is not contiguous: register "
            f"the array that it is a view of, or np.ascontiguousarray(it)"
        )
    return array


def address_of(array: np.ndarray) -> tuple[int, bool]:
    """Address of the first byte, and whether the array is read-only."""
    return array.__array_interface__["data"]


def _view(buffer: Any) -> np.ndarray:
    if isinstance(buffer, np.ndarray):
        return buffer
    if isinstance(buffer, jax.Array):
        return _view_of_jax(buffer)
    try:
        raw = memoryview(buffer)
    except TypeError:
        raise InvalidArgument(
            f"buffer: {type(buffer).__qualname__} is no memory: give a NumPy array, a jax.Array on "
            f"a CPU device, or an object with the buffer protocol"
        ) from None
    if not raw.c_contiguous:
        raise InvalidArgument(
            f"buffer: a memoryview of shape {raw.shape} with strides {raw.strides} is not "
            f"contiguous: register what it is a view of"
        )
    return np.frombuffer(raw, np.uint8) if raw.nbytes else np.empty(0, np.uint8)


def _view_of_jax(array: jax.Array) -> np.ndarray:
    if isinstance(array, jax.core.Tracer):
        raise InvalidArgument("buffer: a traced value has no memory; register outside of jax.jit")
    if array.is_deleted():
        raise InvalidArgument("buffer: this jax.Array was deleted or donated")
    devices = sorted(array.sharding.device_set, key=lambda device: device.id)
    if not array.is_fully_addressable:
        raise InvalidArgument(
            f"buffer: a jax.Array on {', '.join(map(str, devices))}, of which this process "
            f"({jax.process_index()}) does not have all: register x.addressable_shards[i].data in "
            f"each process that has some"
        )
    if len(devices) != 1 or devices[0].platform != "cpu":
        raise InvalidArgument(
            f"buffer: a jax.Array on {', '.join(map(str, devices))}: must be on one CPU device; of "
            f"a sharded array register x.addressable_shards[i].data"
        )
    view = np.asarray(array)
    if view.nbytes and address_of(view)[0] != array.unsafe_buffer_pointer():
        raise InvalidArgument(
            f"buffer: NumPy cannot see a jax.Array of dtype {array.dtype} without a copy"
        )
    return view
