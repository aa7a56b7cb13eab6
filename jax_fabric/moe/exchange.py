"""The exchanges of MoE as differentiable functions of arrays.

dispatch and combine, and what their gradients send, move rows along the same routes:

  dispatch          copies x's rows to every local expert's row;
  dispatch back     its transpose: sums per token, with one float per (token, choice) for the
  weights; combine           sums expert rows per token, weighted or not;
  redispatch        combine's transpose: rows along known routes, times the weight, and the dot
  product
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
from jax.custom_batching import custom_vmap

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


def nothing(like: jax.Array, dtype: Any) -> jax.Array:
    """An absent operand: size 0, varying over the same axes as ``like``."""
    return lax.slice(like.reshape(-1), (0,), (0,)).astype(dtype)


def _no_gradient(value: jax.Array) -> np.ndarray:
    return np.zeros(value.shape, jax.dtypes.float0)


def _folded(value: jax.Array) -> jax.Array:
    """[B, n, ...] -> [B * n, ...]."""
    return value.reshape(-1, *value.shape[2:])


def _unfolded(value: jax.Array, batch: int) -> jax.Array:
    """[B * n, ...] -> [B, n, ...]."""
    return value.reshape(batch, -1, *value.shape[1:])


def _all_batched(
    batch: int, batched: Sequence[bool], values: Sequence[jax.Array]
) -> list[jax.Array]:
    return [
        value if is_batched else jnp.broadcast_to(value[None], (batch, *value.shape))
        for is_batched, value in zip(batched, values, strict=True)
    ]


# --- dispatch


def _dispatch_rows(
    site: Site,
    elements: int,
    x: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    scales: jax.Array,
    after: jax.Array,
) -> tuple[jax.Array, ...]:
    """One exchange for a batch of ``elements``; under vmap the batch grows.

    x is [elements * T, H] and so are the others; of the results, tokens, weights and scales have
    ``capacity`` rows an element, group_sizes ``experts_per_rank``, dropped one. token_ends,
    positions and rows belong to all.
    """
    config = site.config
    if x.shape[0] > config.max_tokens:
        raise ValueError(
            f"dispatch: {elements} elements under vmap have {x.shape[0]} rows together, and "
            f"max_tokens={config.max_tokens}: raise max_tokens"
        )

    @custom_vmap
    def exchange(
        x: jax.Array, weights: jax.Array, experts: jax.Array, scales: jax.Array, after: jax.Array
    ) -> tuple[jax.Array, ...]:
        return primitives.call(
            "jf_moe_dispatch",
            (site.rank(), x, experts, weights, scales, after),
            (
                ((elements * config.capacity, config.hidden), config.tokens_dtype),
                ((elements * config.capacity,), jnp.float32),
                ((elements * config.experts_per_rank,), jnp.int32),
                ((elements,), jnp.int32),
                ((1,), jnp.int32),
                ((x.shape[0], config.num_ranks), jnp.int32),
                ((x.shape[0], config.top_k), jnp.int32),
                ((config.max_rounds,), jnp.int32),
                ((config.num_ranks, config.max_tokens, config.local_top_k), jnp.int32),
                ((config.num_ranks, config.max_rounds), jnp.int32),
                (scales_shape(config, elements), jnp.float32),
            ),
            zero_padding=site.zero_padding,
            **site.attributes(),
        )

    @exchange.def_vmap
    def _(axis_size: int, batched: Sequence[bool], *operands: jax.Array) -> Any:
        operands = [_folded(each) for each in _all_batched(axis_size, batched, operands)]
        out = _dispatch_rows(site, axis_size * elements, *operands)
        shared = (4, 7, 8, 9)  # token, token_ends, positions, rows
        return (
            tuple(
                each if i in shared else _unfolded(each, axis_size) for i, each in enumerate(out)
            ),
            tuple(i not in shared for i in range(len(out))),
        )

    return exchange(x, weights, experts, scales, after)


def scales_shape(config: ExpertParallelConfig, elements: int = 1) -> tuple[int, ...]:
    """Shape of the scales that come with tokens; size 0 where tokens are not quantised."""
    return (elements * config.capacity, config.scales_per_row) if config.raw_tokens else (0,)


def named(name: str, values: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Names results for checkpoint policies: what the gradient keeps is then saved, too."""
    return tuple(checkpoint_name(value, name) for value in values)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def without_gradient(why: str, values: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """The values; an error at trace time where a gradient would pass through one of them."""
    del why
    return values


def _refuse_gradient(why: str, _: None, cotangents: Any) -> Any:
    del cotangents
    raise ValueError(why)


without_gradient.defvjp(lambda why, values: (values, None), _refuse_gradient)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def dispatch(
    site: Site,
    x: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    scales: jax.Array,
    after: jax.Array,
) -> tuple[jax.Array, ...]:
    """Sends rows to the ranks of their experts.

    Args:
      site: the call's static part.
      x: [T, H].
      weights: float32[T, K].
      experts: int32[T, K]; ids outside [0, E) are not routed.
      scales: float32[T, scales_per_row] of x that is quantised, else of size 0.
      after: int32[any], orders this call after the one that returned it.

    Returns:
      tokens, weights, group_sizes, dropped, token, index, slot, token_ends, positions, rows,
      scales; see ``routes.Dispatched``. Quantised tokens and their scales have no gradient; that of
      others is what it would be without quantisation.
    """
    return named(DISPATCH_NAME, _dispatch_rows(site, 1, x, weights, experts, scales, after))


def _dispatch_forward(
    site: Site,
    x: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    scales: jax.Array,
    after: jax.Array,
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    out = dispatch.fun(site, x, weights, experts, scales, after)
    return out, (scales, after, *out[4:-1])


def dispatch_back(
    site: Site, cotangents: tuple[Any, ...], routes: tuple[jax.Array, ...], token: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The transpose of dispatch: from cotangents of its results to those of x and weights.

    That of x is in the context's dtype, also where x was quantised: it had no gradient then.
    """
    d_tokens = cotangents[0]
    if site.config.raw_tokens:
        d_tokens = jnp.zeros_like(d_tokens, site.config.dtype)
    return _combine_rows(site, True, d_tokens, None, cotangents[1], routes, token)


def _dispatch_backward(
    site: Site, residuals: tuple[jax.Array, ...], cotangents: tuple[Any, ...]
) -> tuple[Any, ...]:
    scales, after, token, *routes = residuals
    dx, d_weights = dispatch_back(site, cotangents, tuple(routes), token)
    if scales.size:
        # Never seen: x was quantised, and went through without_gradient.
        dx = jnp.zeros_like(dx, site.config.dispatch_dtype)
    return dx, d_weights, _no_gradient(routes[1]), jnp.zeros_like(scales), _no_gradient(after)


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
    """Sums rows per token: combine, or the transpose of dispatch (``back``, with scalars).

    Returns [T, H] of the context's dtype and, with ``back``, float32[T, K].
    """
    row_weights = nothing(y, jnp.float32) if row_weights is None else row_weights
    row_scalars = nothing(y, jnp.float32) if row_scalars is None else row_scalars

    @custom_vmap
    def exchange(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
        index, slot = operands[3], operands[4]
        out, scalars, _ = primitives.call(
            "jf_moe_combine",
            (site.rank(), *operands),
            (
                ((index.shape[0], site.config.hidden), site.config.dtype),
                (slot.shape if back else (0,), jnp.float32),
                ((1,), jnp.int32),
            ),
            back=back,
            **site.attributes(),
        )
        return out, scalars

    exchange.def_vmap(functools.partial(_vmap_on_routes, exchange, 3))
    return exchange(y, row_weights, row_scalars, *routes, after)


def _vmap_on_routes(
    exchange: Any, routes_at: int, axis_size: int, batched: Sequence[bool], *operands: jax.Array
) -> Any:
    """One exchange for a batch whose dispatch was one exchange; else one exchange an element.

    operands[routes_at:] are index, slot, token_ends, positions, rows and after. index says which: a
    dispatch under the same vmap has one for each element, and the last three for all of them.
    """
    index, after = routes_at, routes_at + 5
    shared = range(routes_at + 2, after)  # token_ends, positions, rows
    if batched[index] and not any(batched[i] for i in shared):
        whole = [
            each
            if i in shared or (i == after and not batched[after])
            else _folded(_all_batched(axis_size, (batched[i],), (each,))[0])
            for i, each in enumerate(operands)
        ]
        out = exchange(*whole)
        return tuple(_unfolded(each, axis_size) for each in out), (True,) * len(out)
    out = lax.map(
        lambda operands: exchange(*operands), tuple(_all_batched(axis_size, batched, operands))
    )
    return out, (True,) * len(out)


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
      routes: index, slot, token_ends, positions, rows of the dispatch.
      token: int32[any], orders this call after those that returned it.

    Returns:
      [T, H] of y's dtype.
    """
    out, _ = _combine_rows(site, False, y, row_weights if weighted else None, None, routes, token)
    return named(COMBINE_NAME, (out,))[0]


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


def combine_back(
    site: Site, weighted: bool, residuals: tuple[Any, ...], d_out: jax.Array
) -> tuple[Any, ...]:
    """The transpose of combine: cotangents of y, weights, routes and token.

    Args:
      site: the call's static part.
      weighted: as combine had it.
      residuals: y (None unless weighted), weights, routes and token of combine.
      d_out: [T, H].
    """
    y, row_weights, routes, after = residuals

    @custom_vmap
    def exchange(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
        d_out, y, all_weights = operands[0], operands[1], operands[2]
        dy, dots, _ = primitives.call(
            "jf_moe_redispatch",
            (
                site.rank(),
                d_out,
                all_weights if weighted else nothing(all_weights, jnp.float32),
                y,
                *operands[3:],
            ),
            (
                ((all_weights.shape[0], site.config.hidden), d_out.dtype),
                (all_weights.shape if weighted else (0,), jnp.float32),
                ((1,), jnp.int32),
            ),
            **site.attributes(),
        )
        return dy, dots

    exchange.def_vmap(functools.partial(_vmap_on_routes, exchange, 3))
    y = y if weighted else nothing(d_out, d_out.dtype)
    dy, dots = exchange(d_out, y, row_weights, *routes, after)
    d_weights = dots if weighted else jnp.zeros_like(row_weights)
    return dy, d_weights, tuple(_no_gradient(route) for route in routes), _no_gradient(after)


combine.defvjp(_combine_forward, combine_back)
