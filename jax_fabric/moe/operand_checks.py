"""Checks of the operands of dispatch, at trace time."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_fabric.moe.config import QUANTISED_DTYPE, SCALE_BLOCK, ExpertParallelConfig


def check_scales(
    config: ExpertParallelConfig, call: str, x: jax.Array, scales: jax.Array | None
) -> None:
    """Scales belong to x, which was checked.

    Raises:
      ValueError: they do not.
    """
    needed = config.quantised and x.dtype == config.dispatch_dtype
    if needed and scales is None:
        raise ValueError(
            f"{call}: x is {x.dtype} and comes without scales: pass scales=float32"
            f"[{x.shape[0]}, {config.scales_per_row}], or x as {config.dtype}"
        )
    if not needed and scales is not None:
        raise ValueError(
            f"{call}: scales were given, and x is {x.dtype}: only x that is "
            f"{jnp.dtype(QUANTISED_DTYPE)} has scales, in a context with that dispatch_dtype"
        )
    shape = (x.shape[0], config.scales_per_row)
    if scales is not None and (scales.shape != shape or scales.dtype != jnp.float32):
        raise ValueError(
            f"{call}: scales are {scales.dtype}{list(scales.shape)}, and must be "
            f"float32{list(shape)}, one for each {SCALE_BLOCK} elements of a row"
        )


def check_rows(
    config: ExpertParallelConfig, call: str, x: jax.Array, experts: jax.Array, weights: jax.Array
) -> None:
    """Shapes and dtypes of what dispatch takes.

    Raises:
      ValueError: names the call, the operand and what it must be.
    """
    if x.ndim != 2 or x.shape[1] != config.hidden:
        raise ValueError(
            f"{call}: x has shape {list(x.shape)}, and must be [T, hidden={config.hidden}]"
        )
    if x.shape[0] > config.max_tokens:
        raise ValueError(
            f"{call}: x has {x.shape[0]} rows, and max_tokens={config.max_tokens}: raise max_tokens"
        )
    if x.dtype != config.dtype and not (config.quantised and x.dtype == config.dispatch_dtype):
        raise ValueError(
            f"{call}: x is {x.dtype}, and the context was made with dtype={config.dtype}: "
            f"cast x, or pass dtype={x.dtype} to ExpertParallel"
        )
    shape = (x.shape[0], config.top_k)
    for name, value, kind in (
        ("experts", experts, jnp.integer),
        ("weights", weights, jnp.floating),
    ):
        if value.shape != shape:
            raise ValueError(
                f"{call}: {name} has shape {list(value.shape)}, and must be [T={shape[0]}, "
                f"top_k={shape[1]}]"
            )
        if not jnp.issubdtype(value.dtype, kind):
            raise ValueError(f"{call}: {name} is {value.dtype}, and must be {kind.__name__}")
