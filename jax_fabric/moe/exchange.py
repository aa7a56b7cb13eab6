"""The exchanges of MoE as differentiable functions of arrays.

dispatch and combine, and what their gradients send, move rows along the same routes:

  dispatch          copies x's rows to every local expert's row;
  dispatch back     its transpose: sums per token, with one float per (token, choice) for the weights;
  combine           sums expert rows per token, weighted or not;
  redispatch        combine's transpose: rows along known routes, times the weight, and the dot product
                    with y for the weights.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jax_fabric import primitives
from jax_fabric.moe.config import ExpertParallelConfig

#: Names of the results of an exchange, for checkpoint policies.
DISPATCH_NAME = "jax_fabric_dispatch"
COMBINE_NAME = "jax_fabric_combine"


@dataclasses.dataclass(frozen=True)
class Site:
    """What is static about a call: hashable, equal on all ranks."""

    config: ExpertParallelConfig
    axis_name: str
    context: int
    channel: int
    zero_padding: bool = False

    def rank(self) -> jax.Array:
        """int32[]: this rank on the axis."""
        return lax.axis_index(self.axis_name).astype(jnp.int32)

    def attributes(self) -> dict[str, int]:
        """Attributes that every call carries."""
        return {"context": self.context, "channel": self.channel}


def _nothing(like: jax.Array, dtype: Any) -> jax.Array:
    """An absent operand: size 0, varying over the same axes as ``like``."""
    return lax.slice(like.reshape(-1), (0,), (0,)).astype(dtype)


def _no_gradient(value: jax.Array) -> np.ndarray:
    return np.zeros(value.shape, jax.dtypes.float0)


# --- dispatch


def _named(name: str, values: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Names results for checkpoint policies: what the gradient keeps is then saved, too."""
    return tuple(checkpoint_name(value, name) for value in values)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def dispatch(
    site: Site, x: jax.Array, weights: jax.Array, experts: jax.Array, after: jax.Array
) -> tuple[jax.Array, ...]:
    """Sends rows to the ranks of their experts.

    Args:
      site: the call's static part.
      x: [T, H].
      weights: float32[T, K].
      experts: int32[T, K]; ids outside [0, E) are not routed.
      after: int32[any], orders this call after the one that returned it.

    Returns:
      tokens, weights, group_sizes, dropped, token, index, slot, positions, rows; see
      ``routes.Dispatched``.
    """
    config = site.config
    t_rows = x.shape[0]
    out = primitives.call(
        "jf_moe_dispatch",
        (site.rank(), x, experts, weights, after),
        (
            ((config.capacity, config.hidden), config.dtype),
            ((config.capacity,), jnp.float32),
            ((config.experts_per_rank,), jnp.int32),
            ((1,), jnp.int32),
            ((1,), jnp.int32),
            ((t_rows, config.num_ranks), jnp.int32),
            ((t_rows, config.top_k), jnp.int32),
            ((config.num_ranks, config.max_tokens, config.local_top_k), jnp.int32),
            ((config.num_ranks,), jnp.int32),
        ),
        zero_padding=site.zero_padding,
        **site.attributes(),
    )
    return _named(DISPATCH_NAME, out)


def _dispatch_forward(
    site: Site, x: jax.Array, weights: jax.Array, experts: jax.Array, after: jax.Array
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    out = dispatch.fun(site, x, weights, experts, after)
    _, _, _, _, token, index, slot, positions, rows = out
    return out, (token, index, slot, positions, rows)


def _dispatch_backward(
    site: Site, residuals: tuple[jax.Array, ...], cotangents: tuple[Any, ...]
) -> tuple[Any, ...]:
    token, index, slot, positions, rows = residuals
    d_tokens, d_row_weights = cotangents[0], cotangents[1]
    dx, d_weights = _combine_rows(
        site, True, d_tokens, None, d_row_weights, (index, slot, positions, rows), token
    )
    return dx, d_weights, _no_gradient(slot), _no_gradient(token)


dispatch.defvjp(_dispatch_forward, _dispatch_backward)


# --- combine


def _combine_rows(
    site: Site,
    back: bool,
    y: jax.Array,
    row_weights: jax.Array | None,
    row_scalars: jax.Array | None,
    routes: tuple[jax.Array, ...],
    after: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Sums rows per token: combine, or the transpose of dispatch (``back``, with scalars)."""
    index, slot, _, _ = routes
    row_weights = _nothing(y, jnp.float32) if row_weights is None else row_weights
    row_scalars = _nothing(y, jnp.float32) if row_scalars is None else row_scalars
    out, scalars, _ = primitives.call(
        "jf_moe_combine",
        (site.rank(), y, row_weights, row_scalars, *routes, after),
        (
            ((index.shape[0], site.config.hidden), y.dtype),
            (slot.shape if back else (0,), jnp.float32),
            ((1,), jnp.int32),
        ),
        back=back,
        **site.attributes(),
    )
    return out, scalars


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def combine(
    site: Site,
    weighted: bool,
    y: jax.Array,
    row_weights: jax.Array,
    routes: tuple[jax.Array, ...],
    token: jax.Array,
) -> jax.Array:
    """Sums expert rows per token.

    Args:
      site: the call's static part.
      weighted: multiply each row by its weight first.
      y: [capacity, H], rows of the experts in the order of ``tokens``.
      row_weights: float32[capacity].
      routes: index, slot, positions, rows of the dispatch.
      token: int32[any], orders this call after those that returned it.

    Returns:
      [T, H] of y's dtype.
    """
    out, _ = _combine_rows(
        site, False, y, row_weights if weighted else None, None, routes, token
    )
    return _named(COMBINE_NAME, (out,))[0]


def _combine_forward(
    site: Site,
    weighted: bool,
    y: jax.Array,
    row_weights: jax.Array,
    routes: tuple[jax.Array, ...],
    token: jax.Array,
) -> tuple[jax.Array, tuple[Any, ...]]:
    out = combine.fun(site, weighted, y, row_weights, routes, token)
    return out, (y if weighted else None, row_weights, routes, token)


def _combine_backward(
    site: Site, weighted: bool, residuals: tuple[Any, ...], d_out: jax.Array
) -> tuple[Any, ...]:
    y, row_weights, routes, after = residuals
    capacity, hidden = site.config.capacity, site.config.hidden
    dy, dots, _ = primitives.call(
        "jf_moe_redispatch",
        (
            site.rank(),
            d_out,
            row_weights if weighted else _nothing(row_weights, jnp.float32),
            y if weighted else _nothing(d_out, d_out.dtype),
            *routes,
            after,
        ),
        (
            ((capacity, hidden), d_out.dtype),
            ((capacity,) if weighted else (0,), jnp.float32),
            ((1,), jnp.int32),
        ),
        **site.attributes(),
    )
    d_weights = dots if weighted else jnp.zeros_like(row_weights)
    return dy, d_weights, tuple(_no_gradient(route) for route in routes), _no_gradient(after)


combine.defvjp(_combine_forward, _combine_backward)
