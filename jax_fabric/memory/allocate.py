"""Memory that other processes of this machine can map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_fabric import _core
from jax_fabric.arguments import integer
from jax_fabric.errors import InvalidArgument


def allocate(shape: int | Sequence[int], dtype: Any = np.uint8) -> np.ndarray:
    """A zero-filled array in shared memory, page-aligned.

    Register it where processes of the same machine write to: they map it and copy straight into it.
    Other memory costs them a system call a write, or cannot be reached, where the kernel does not
    let one process write into another. It lives as long as the array, its views or a registration.

    Args:
      shape: of the array, at least one element.
      dtype: of the elements, without Python objects.

    Raises:
      InvalidArgument: shape or dtype is wrong.
      FabricError: the machine has no memory left.
    """
    sizes = (shape,) if np.ndim(shape) == 0 else tuple(shape)  # type: ignore[arg-type]
    sizes = tuple(integer("shape", size, least=1) for size in sizes)
    try:
        element = np.dtype(dtype)
    except TypeError as error:
        raise InvalidArgument(f"dtype={dtype!r}: {error}") from None
    if element.hasobject or element.itemsize == 0:
        raise InvalidArgument(f"dtype={dtype!r}: must have a fixed size and no Python objects")
    nbytes = integer("shape", math.prod(sizes) * element.itemsize, least=1, most=2**46)
    return np.asarray(_core.SharedMemory(nbytes)).view(element).reshape(sizes)
