"""The truth that dispatch, combine and whole MoE layers are compared with: plain JAX on one device.

All ranks are computed at once, with a leading axis of ranks. Nothing here is fast; everything is
differentiable in x, y and the weights, and may be called inside of a jitted function. Letters in
shapes: N ranks, T tokens of each rank, K experts of a token (top_k), E experts, L = ceil(E / N)
experts of each rank, H elements of a row, C = capacity.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dispatched:
    """What every rank's experts get.

    Attributes:
      tokens: [N, C, H], each rank's rows ordered by (expert, source rank, token); 0 past the last
        row.
      weights: float32[N, C], routing weight of each row; 0 past the last row.
      group_sizes: int32[N, L], rows of each expert.
      dropped: int32[N, 1], rows that found no room in C, the last ones in that order.
      source: int32[N, C], where each row came from: ``source_rank * T + token``, or -1.
    """

    tokens: jax.Array
    weights: jax.Array
    group_sizes: jax.Array
    dropped: jax.Array
    source: jax.Array


def expert_weights(experts: jax.Array, weights: jax.Array, num_experts: int) -> jax.Array:
    """Weight of every expert for every token.

    Args:
      experts: integers [..., K]; ids outside [0, E) are not routed.
      weights: [..., K].
      num_experts: E.

    Returns:
      float32[..., E]: the sum of the weights by which a token names an expert; 0 where it does not.
    """
    named = _named(jnp.asarray(experts), num_experts)
    return jnp.where(named, jnp.asarray(weights).astype(jnp.float32)[..., None], 0.0).sum(axis=-2)


def _named(experts: jax.Array, num_experts: int) -> jax.Array:
    """bool[..., K, E]: choice k of the token is expert e."""
    # Never narrower than they came: a large id must not wrap to one that exists.
    experts = experts.astype(jnp.promote_types(experts.dtype, jnp.int32))
    ids = jnp.arange(num_experts, dtype=experts.dtype)
    return experts[..., None] == ids


@functools.partial(jax.jit, static_argnames=("num_experts", "capacity"))
def dispatch(
    xs: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    *,
    num_experts: int,
    capacity: int | None = None,
) -> Dispatched:
    """Dispatches the tokens of all ranks.

    Args:
      xs: [N, T, H].
      experts: integers [N, T, K]; ids outside [0, E) are not routed, an expert named twice by a
        token becomes one row with the summed weight.
      weights: [N, T, K].
      num_experts: E.
      capacity: C; default: what can never overflow, ``N * T * min(K, L)``.

    Raises:
      ValueError: shapes that do not belong together.
    """
    ranks, tokens, hidden = xs.shape
    if experts.shape != weights.shape or experts.shape[:-1] != (ranks, tokens):
        raise ValueError(
            f"xs {xs.shape}, experts {experts.shape} and weights {weights.shape} must be "
            "[N, T, H], [N, T, K] and [N, T, K]"
        )
    experts_per_rank = -(-num_experts // ranks)
    padded_experts = ranks * experts_per_rank
    if capacity is None:
        capacity = ranks * tokens * min(experts.shape[-1], experts_per_rank)

    # One row of "hits" for each expert: rising (source rank, token) is the order wanted within it.
    hits = _named(experts, num_experts).any(axis=-2).reshape(ranks * tokens, num_experts)
    hits = jnp.pad(hits.T, ((0, padded_experts - num_experts), (0, 0)))
    dense_weights = expert_weights(experts, weights, num_experts).reshape(-1, num_experts)
    dense_weights = jnp.pad(dense_weights.T, ((0, padded_experts - num_experts), (0, 0)))
    rows = xs.reshape(ranks * tokens, hidden)

    def one_rank(hits: jax.Array, dense_weights: jax.Array) -> Dispatched:
        """hits, dense_weights: [L, N * T]."""
        total = hits.sum(dtype=jnp.int32)
        if capacity == 0 or hits.size == 0:
            place = jnp.full((capacity,), -1, jnp.int32)
        else:
            (place,) = jnp.nonzero(hits.reshape(-1), size=capacity, fill_value=-1)
        used = place >= 0
        source = jnp.where(used, place % max(1, ranks * tokens), -1).astype(jnp.int32)
        ends = jnp.minimum(jnp.cumsum(hits.sum(axis=1, dtype=jnp.int32)), capacity)
        return Dispatched(
            tokens=jnp.where(used[:, None], _take(rows, source), jnp.zeros((), xs.dtype)),
            weights=jnp.where(used, _take(dense_weights.reshape(-1), place), 0.0),
            group_sizes=jnp.diff(ends, prepend=0).astype(jnp.int32),
            dropped=jnp.maximum(total - capacity, 0).reshape(1),
            source=source,
        )

    shape = (ranks, experts_per_rank, ranks * tokens)
    return jax.vmap(one_rank)(hits.reshape(shape), dense_weights.reshape(shape))


def _take(values: jax.Array, indices: jax.Array) -> jax.Array:
    """values[indices], with anything for index -1."""
    if values.shape[0] == 0:
        return jnp.zeros((*indices.shape, *values.shape[1:]), values.dtype)
    return values[jnp.maximum(indices, 0)]


@jax.jit
def quantise(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Quantises blocks of 128 elements to float8_e4m3fn, as dispatch does.

    The scale of a block is its largest finite magnitude, at least 1e-4, over 448.

    Args:
      x: [..., H].

    Returns:
      float8_e4m3fn[..., H] and float32[..., ceil(H / 128)].
    """
    *rows, hidden = x.shape
    blocks = jnp.pad(x.astype(jnp.float32), [(0, 0)] * len(rows) + [(0, -hidden % 128)])
    blocks = blocks.reshape(*rows, -1, 128)
    magnitudes = jnp.where(jnp.isfinite(blocks), jnp.abs(blocks), 0.0)
    largest = jnp.maximum(magnitudes.max(axis=-1, keepdims=True), jnp.float32(1e-4))
    values = (blocks * (jnp.float32(448.0) / largest)).reshape(*rows, -1)[..., :hidden]
    return values.astype(jnp.float8_e4m3fn), largest[..., 0] * jnp.float32(1 / 448)


@functools.partial(jax.jit, static_argnames=("dtype",))
def dequantise(values: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
    """The inverse of :func:`quantise`, but for rounding.

    Args:
      values: float8_e4m3fn[..., H].
      scales: float32[..., ceil(H / 128)].
      dtype: of the result.
    """
    scales = jnp.repeat(scales, 128, axis=-1)[..., : values.shape[-1]]
    return (values.astype(jnp.float32) * scales).astype(dtype)


@functools.partial(jax.jit, static_argnames=("tokens", "weighted", "combine_dtype"))
def combine(
    ys: jax.Array,
    dispatched: Dispatched,
    *,
    tokens: int,
    weighted: bool = True,
    combine_dtype: Any = None,
) -> jax.Array:
    """Brings the experts' rows back and sums them for each token.

    Rounds where the real one does: each rank sums its rows in float32 and rounds the sum once to
    `combine_dtype`; the sum over ranks is in float32 and rounded once to the dtype of `ys`.

    Args:
      ys: [N, C, H], the experts' outputs for ``dispatched.tokens``. Rows past the last one are not
        read.
      dispatched: what :func:`dispatch` returned.
      tokens: T.
      weighted: whether rows are multiplied by ``dispatched.weights`` first.
      combine_dtype: of the partial sums; default: the dtype of `ys`.

    Returns:
      [N, T, H] in the dtype of `ys`; 0 for tokens that went nowhere.
    """
    ranks, _, hidden = ys.shape
    combine_dtype = ys.dtype if combine_dtype is None else combine_dtype

    def one_rank(y: jax.Array, weights: jax.Array, source: jax.Array) -> jax.Array:
        """The partial sums [N * T, H] that one rank sends back, in float32."""
        used = (source >= 0)[:, None]
        y = jnp.where(used, y.astype(jnp.float32), 0.0)
        if weighted:
            y = y * jnp.where(used, weights[:, None], 0.0)
        sums = jnp.zeros((ranks * tokens, hidden), jnp.float32)
        out_of_range = ranks * tokens
        return sums.at[jnp.where(source >= 0, source, out_of_range)].add(y, mode="drop")

    partial = jax.vmap(one_rank)(ys, dispatched.weights, dispatched.source)
    partial = partial.astype(combine_dtype).astype(jnp.float32)
    total = lax.fori_loop(1, ranks, lambda r, sums: sums + partial[r], partial[0])
    return total.astype(ys.dtype).reshape(ranks, tokens, hidden)


def dense_moe(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    expert_fn: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    num_experts: int,
) -> jax.Array:
    """A whole MoE layer without any exchange: every expert sees every token.

    Args:
      x: [..., H].
      experts: integers [..., K]; ids outside [0, E) are not routed.
      weights: [..., K].
      expert_fn: maps (rows [..., H], expert int32[]) to the expert's outputs [..., H_out]. It sees
        zeros in place of rows that are not routed to the expert.
      num_experts: E.

    Returns:
      [..., H_out] in the dtype that `expert_fn` returns; the weighted sum is made in float32.
    """
    x, experts, weights = jnp.asarray(x), jnp.asarray(experts), jnp.asarray(weights)
    hits = _named(experts, num_experts).any(axis=-2)
    dense_weights = expert_weights(experts, weights, num_experts)
    out = jax.eval_shape(expert_fn, x, jax.ShapeDtypeStruct((), jnp.int32))

    def add_expert(total: jax.Array, expert: jax.Array) -> tuple[jax.Array, None]:
        hit = lax.dynamic_index_in_dim(hits, expert, axis=-1)
        weight = lax.dynamic_index_in_dim(dense_weights, expert, axis=-1)
        # Selected on both sides, so that a NaN in a row that is not routed reaches neither the
        # result nor a gradient.
        y = expert_fn(jnp.where(hit, x, jnp.zeros((), x.dtype)), expert)
        return total + jnp.where(hit, y.astype(jnp.float32) * weight, 0.0), None

    total = jnp.zeros(out.shape, jnp.float32)
    total, _ = lax.scan(add_expert, total, jnp.arange(num_experts, dtype=jnp.int32))
    return total.astype(out.dtype)
