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
      Indices as contiguous uint64, stride and offset.

    Raises:
      InvalidArgument: names the argument.
    """
    if not isinstance(pages, Pages):
        pages = Pages(pages)
    indices = np.asarray(pages.indices)
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or indices.size == 0:
        raise InvalidArgument(
            f"{name}: indices of shape {indices.shape} and dtype {indices.dtype}: must be whole "
            f"numbers in one dimension, at least one"
        )
    if indices.dtype.kind == "i" and indices.min() < 0:
        raise InvalidArgument(f"{name}: index {indices.min()} is below 0")
    stride = page_nbytes if pages.stride is None else integer(f"{name}.stride", pages.stride)
    offset = integer(f"{name}.offset", pages.offset)
    return np.ascontiguousarray(indices, np.uint64), stride, offset
