"""Pages of a paged write."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jax_fabric.arguments import integer
from jax_fabric.errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class Pages:
    """Where pages lie: page i at ``offset + indices[i] * stride`` bytes.

    Attributes:
      indices: whole numbers of at least 0, one-dimensional.
      stride: bytes from one page to the next; default: the length of a page.
      offset: bytes before page 0.
    """

    indices: Any
    stride: int | None = None
    offset: int = 0


def page_arguments(name: str, pages: Any, page_nbytes: int) -> tuple[np.ndarray, int, int]:
    """Checks pages, given as Pages or as indices alone.

    Returns:
      Indices as contiguous int64 or uint64, whose signs are still to be looked at (by the
      extension, where a call is cheaper); stride and offset.

    Raises:
      InvalidArgument: names the argument.
    """
    stride, offset = page_nbytes, 0
    if isinstance(pages, Pages):
        if pages.stride is not None:
            stride = integer(f"{name}.stride", pages.stride)
        offset = integer(f"{name}.offset", pages.offset)
        pages = pages.indices
    indices = np.asarray(pages)
    kind = indices.dtype.kind
    if indices.ndim != 1 or kind not in "iu" or indices.size == 0:
        raise InvalidArgument(
            f"{name}: indices of shape {indices.shape} and dtype {indices.dtype}: must be whole "
            f"numbers in one dimension, at least one"
        )
    return np.ascontiguousarray(indices, np.int64 if kind == "i" else np.uint64), stride, offset
