"""What is read of a source."""

from __future__ import annotations

from jax_fabric import _core
from jax_fabric.arguments import instance, integer
from jax_fabric.errors import InvalidArgument
from jax_fabric.memory import MemoryRegion


def source_range(
    source: MemoryRegion | None, offset: int, nbytes: int | None
) -> tuple[_core.Region | None, int, int]:
    """The native region, offset and length of a source."""
    offset = integer("source_offset", offset)
    if source is None:
        if nbytes:
            raise InvalidArgument(f"nbytes={nbytes!r}: without a source there is nothing to write")
        return None, 0, 0
    instance("source", source, MemoryRegion)
    if nbytes is None:
        if offset > source.nbytes:
            raise InvalidArgument(
                f"source_offset={offset}: is outside of the source's {source.nbytes} bytes"
            )
        return source._native, offset, source.nbytes - offset
    return source._native, offset, integer("nbytes", nbytes)
