"""What dispatch returns and combine takes: rows for the experts, and the routes they came by."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Routes:
    """How the rows of one dispatch travelled: kept as data, so that grad, scan and remat carry it.

    Attributes:
      index: int32[T, N], row of a token in the message to a rank, or -1.
      slot: int32[T, K], which local expert of that row a choice became, or -1.
      token_ends: int32[max_rounds], the first token that was left after each round.
      positions: int32[N, max_tokens, local_top_k], row in ``tokens`` of a received entry, or -1.
      rows: int32[N, max_rounds], rows received from each rank in each round; -1 where there was no
        such round.
    """

    index: jax.Array
    slot: jax.Array
    token_ends: jax.Array
    positions: jax.Array
    rows: jax.Array

    def received(self) -> jax.Array:
        """int32[N]: rows received from each rank."""
        return jnp.maximum(self.rows, 0).sum(axis=1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dispatched:
    """Rows for this rank's experts.

    Attributes:
      tokens: [capacity, H] of ``tokens_dtype``, ordered by (expert, source rank, token). Rows past
        ``group_sizes.sum()`` are unspecified.
      weights: float32[capacity], the routing weight of each row.
      group_sizes: int32[experts_per_rank], rows of each expert: what ``jax.lax.ragged_dot`` takes.
      dropped: int32[1], rows that found no room; always 0 unless ``on_overflow="drop"``.
      token: int32[1], to order other calls after this one (``after=``).
      routes: for combine.
      scales: float32[capacity, ceil(H / 128)] where ``tokens_dtype`` is float8_e4m3fn, else None.
        Element h of row c stands for ``tokens[c, h] * scales[c, h // 128]``. Rows past the last one
        are unspecified.
    """

    tokens: jax.Array
    weights: jax.Array
    group_sizes: jax.Array
    dropped: jax.Array
    token: jax.Array
    routes: Routes
    scales: jax.Array | None = None
