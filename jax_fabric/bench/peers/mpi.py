"""The exchange of blocks over mpi4jax. Imports it, so only for processes that mpiexec started."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpi4jax
from jax import lax
from mpi4py import MPI


def all_to_all(blocks: jax.Array) -> jax.Array:
    """[N, ...]: block i goes to rank i, block i of the result came from rank i."""
    if blocks.dtype == jnp.bool_:
        return _exchange(blocks.astype(jnp.uint8)).astype(jnp.bool_)
    if blocks.dtype.itemsize == 2:  # MPI knows neither bfloat16 nor float16: their bits travel
        bits = lax.bitcast_convert_type(blocks, jnp.uint16)
        return lax.bitcast_convert_type(_exchange(bits), blocks.dtype)
    return _exchange(blocks)


def rank() -> int:
    """Of this process."""
    return MPI.COMM_WORLD.rank


def _exchange(blocks: jax.Array) -> jax.Array:
    return mpi4jax.alltoall(blocks, comm=MPI.COMM_WORLD)
