"""Exchanges in two halves: what is computed between start and done runs while the rows travel."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jax_fabric import primitives
from jax_fabric.moe import exchange
from jax_fabric.moe.exchange import Site


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["x", "weights", "ticket", "index", "slot", "token_ends", "scales"],
    meta_fields=["channel"],
)
@dataclasses.dataclass(frozen=True)
class StartedDispatch:
    """A dispatch on its way; for ``ExpertParallel.dispatch_done``, once.

    Attributes:
      x: [T, H], what is sent; here for rounds after the first one, and so that gradients reach it.
      weights: float32[T, K], for gradients.
      ticket: int32[1], the call's number on its channel.
      index: int32[T, N], see ``Routes``.
      slot: int32[T, K], see ``Routes``.
      token_ends: int32[max_rounds], see ``Routes``.
      scales: float32[T, scales_per_row] of x that is quantised, else of size 0.
      channel: which it occupies until it is done.
    """

    x: jax.Array
    weights: jax.Array
    ticket: jax.Array
    index: jax.Array
    slot: jax.Array
    token_ends: jax.Array
    scales: jax.Array
    channel: int


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["y", "weights", "routes", "token", "ticket"],
    meta_fields=["channel", "weighted"],
)
@dataclasses.dataclass(frozen=True)
class StartedCombine:
    """A combine on its way; for ``ExpertParallel.combine_done``, once.

    Attributes:
      y: [capacity, H], what is sent; here for rounds after the first one, and so that gradients
        reach it.
      weights: float32[capacity], likewise.
      routes: index, slot, token_ends, positions and rows of the dispatch.
      token: int32[any], what the combine came after.
      ticket: int32[1], the call's number on its channel.
      channel: which it occupies until it is done.
      weighted: whether rows were multiplied by their weights.
    """

    y: jax.Array
    weights: jax.Array
    routes: tuple[jax.Array, ...]
    token: jax.Array
    ticket: jax.Array
    channel: int
    weighted: bool


def _without_vmap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an error that says what to do instead of vmap."""
    wrapped = custom_vmap(function)

    @wrapped.def_vmap
    def _(axis_size: int, batched: Any, *operands: Any) -> Any:
        whole = name.split("_")[0]
        raise ValueError(
            f"{name}: an exchange in two halves cannot be batched by vmap: use {whole}, which can"
        )

    return wrapped


def _for_later_rounds(site: Site, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """What rounds after the first one send; nothing where there is none, so that it may go."""
    if site.config.max_rounds > 1:
        return operands
    return tuple(exchange.nothing(each, each.dtype) for each in operands)


# --- dispatch


def start_dispatch(
    site: Site,
    x: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    scales: jax.Array,
    after: jax.Array,
) -> StartedDispatch:
    """Sends the rows; see ``exchange.dispatch`` for the arguments."""

    def start(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return primitives.call(
            "jf_moe_dispatch_start",
            (site.rank(), *operands),
            (
                ((1,), jnp.int32),
                ((x.shape[0], site.config.num_ranks), jnp.int32),
                ((x.shape[0], site.config.top_k), jnp.int32),
                ((site.config.max_rounds,), jnp.int32),
            ),
            **site.attributes(),
        )

    # Gradients pass through the other half.
    operands = lax.stop_gradient((x, experts, weights, scales, after))
    ticket, index, slot, token_ends = _without_vmap("dispatch_start", start)(*operands)
    return StartedDispatch(x, weights, ticket, index, slot, token_ends, scales, site.channel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def finish_dispatch(
    site: Site,
    x: jax.Array,
    weights: jax.Array,
    ticket: jax.Array,
    index: jax.Array,
    slot: jax.Array,
    token_ends: jax.Array,
    scales: jax.Array,
    overlap: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """Receives the rows, and sends those of rounds after the first one.

    Args:
      site: the call's static part.
      x: [T, H], as at the start.
      weights: float32[T, K], as at the start: only gradients need it.
      ticket: int32[1] of the start.
      index: int32[T, N] of the start.
      slot: int32[T, K] of the start.
      token_ends: int32[max_rounds] of the start.
      scales: as at the start.
      overlap: arrays that are computed first.

    Returns:
      What ``exchange.dispatch`` returns.
    """
    del weights
    config = site.config

    def done(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return primitives.call(
            "jf_moe_dispatch_done",
            (site.rank(), *operands),
            (
                ((config.capacity, config.hidden), config.tokens_dtype),
                ((config.capacity,), jnp.float32),
                ((config.experts_per_rank,), jnp.int32),
                ((1,), jnp.int32),
                ((1,), jnp.int32),
                ((config.num_ranks, config.max_tokens, config.local_top_k), jnp.int32),
                ((config.num_ranks, config.max_rounds), jnp.int32),
                (exchange.scales_shape(config), jnp.float32),
            ),
            zero_padding=site.zero_padding,
            **site.attributes(),
        )

    later = _for_later_rounds(site, x, scales, index, slot, token_ends)
    *first, positions, rows, row_scales = _without_vmap("dispatch_done", done)(
        ticket, *later, *overlap
    )
    out = (*first, index, slot, token_ends, positions, rows, row_scales)
    return exchange.named(exchange.DISPATCH_NAME, out)


def _finish_dispatch_forward(site: Site, *operands: Any) -> tuple[Any, Any]:
    out = finish_dispatch.fun(site, *operands)
    x = operands[0]
    return out, (exchange.nothing(x, x.dtype), *out[4:-1])  # of x, only the dtype


def _finish_dispatch_backward(site: Site, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    x, token, *routes = residuals
    dx, d_weights = exchange.dispatch_back(site, cotangents, tuple(routes), token)
    return dx.astype(x.dtype), d_weights, None, None, None, None, None, None


finish_dispatch.defvjp(_finish_dispatch_forward, _finish_dispatch_backward)


# --- combine


def start_combine(
    site: Site,
    weighted: bool,
    y: jax.Array,
    weights: jax.Array,
    routes: tuple[jax.Array, ...],
    token: jax.Array,
) -> StartedCombine:
    """Sends the rows; see ``exchange.combine`` for the arguments."""
    index, _, _, positions, rows = routes

    def start(*operands: jax.Array) -> tuple[jax.Array, ...]:
        y, weights, *others = operands
        nothing = exchange.nothing(y, jnp.float32)
        return primitives.call(
            "jf_moe_combine_start",
            (site.rank(), y, weights if weighted else nothing, nothing, *others),
            (((1,), jnp.int32),),
            tokens=index.shape[0],
            **site.attributes(),
        )

    operands = lax.stop_gradient((y, weights, positions, rows, token))
    (ticket,) = _without_vmap("combine_start", start)(*operands)
    return StartedCombine(y, weights, routes, token, ticket, site.channel, weighted)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def finish_combine(
    site: Site,
    weighted: bool,
    y: jax.Array,
    weights: jax.Array,
    routes: tuple[jax.Array, ...],
    token: jax.Array,
    ticket: jax.Array,
    overlap: tuple[jax.Array, ...],
) -> jax.Array:
    """Receives the sums, and sends rounds after the first one.

    Args:
      site: the call's static part.
      weighted: as at the start.
      y: [capacity, H], as at the start.
      weights: float32[capacity], as at the start.
      routes: index, slot, token_ends, positions, rows of the dispatch.
      token: int32[any], what the combine came after.
      ticket: int32[1] of the start.
      overlap: arrays that are computed first.

    Returns:
      What ``exchange.combine`` returns.
    """
    del token
    return _combine_done(site, weighted, y, weights, routes, ticket, overlap)[0]


def _combine_done(
    site: Site,
    weighted: bool,
    y: jax.Array,
    weights: jax.Array,
    routes: tuple[jax.Array, ...],
    ticket: jax.Array,
    overlap: tuple[jax.Array, ...],
) -> tuple[jax.Array, jax.Array]:
    """The sums, and int32[1] that says that it is done."""
    index, slot, token_ends, positions, rows = routes

    def done(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return primitives.call(
            "jf_moe_combine_done",
            (site.rank(), *operands),
            (((index.shape[0], site.config.hidden), y.dtype), ((1,), jnp.int32)),
            **site.attributes(),
        )

    row_weights = weights if weighted else exchange.nothing(weights, jnp.float32)
    later = _for_later_rounds(site, y, row_weights, positions, rows)
    operands = (ticket, index, slot, token_ends, *later, *overlap)
    out, token = exchange.named(
        exchange.COMBINE_NAME, _without_vmap("combine_done", done)(*operands)
    )
    return out, token


def _finish_combine_forward(
    site: Site,
    weighted: bool,
    y: jax.Array,
    weights: jax.Array,
    routes: tuple[jax.Array, ...],
    token: jax.Array,
    *halves: Any,
) -> tuple[Any, Any]:
    del token
    out, done = _combine_done(site, weighted, y, weights, routes, *halves)
    # The gradient's exchange comes after this one even where no data of the program says so:
    # between the halves it would wait for a channel that is occupied until the second one.
    return out, (y if weighted else None, weights, routes, done)


def _finish_combine_backward(
    site: Site, weighted: bool, residuals: Any, d_out: jax.Array
) -> tuple[Any, ...]:
    *cotangents, _ = exchange.combine_back(site, weighted, residuals, d_out)
    return (*cotangents, None, None, None)


finish_combine.defvjp(_finish_combine_forward, _finish_combine_backward)
