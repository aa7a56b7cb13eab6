"""The peer "plain JAX": MoE dispatch and combine out of JAX's own operations.

Sort the rows by the rank they go to, ``lax.all_to_all`` blocks of worst-case size, sort what came
by expert; and back. Each token goes to a rank once, and each rank sums its experts' rows before
they return, as jax_fabric does it, so this is the best that fixed-size collectives give: what they
cannot do is send only the rows that are there.

The calls and their results look like those of ``jax_fabric.moe.ExpertParallel``, so that one
program runs over either. Letters in shapes: N ranks, T tokens of each rank, K experts of a token, E
experts, L = ceil(E / N), H elements of a row, C = capacity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dispatched:
    """Rows for this rank's experts.

    Attributes:
      tokens: [C, H], ordered by (expert, source rank, token).
      weights: float32[C], routing weight of each row; 0 past the last row.
      group_sizes: int32[L], rows of each expert.
      dropped: int32[1], rows that found no room in C.
      slot: int32[C], place of each row among the N * T received ones, or -1.
      returns: int32[T, N], place of a token in the block that it went to a rank in, or -1.
    """

    tokens: jax.Array
    weights: jax.Array
    group_sizes: jax.Array
    dropped: jax.Array
    slot: jax.Array
    returns: jax.Array


@dataclasses.dataclass(frozen=True)
class PlainExpertParallel:
    """Dispatch and combine over one mesh axis; call them inside ``shard_map``.

    Attributes:
      num_ranks: N, size of the axis.
      axis_name: the mesh axis.
      num_experts: E; expert e lives on rank ``e // L``.
      top_k: K.
      max_tokens: T at most.
      capacity: C; default: what can never overflow.
      combine_dtype: of the rows on their way back; default: that of the rows.
      all_to_all: exchanges [N, ...], block i of the operand going to rank i and block i of the
        result having come from there; default: ``lax.all_to_all`` over the axis.
    """

    num_ranks: int
    axis_name: str
    num_experts: int
    top_k: int
    max_tokens: int
    capacity: int | None = None
    combine_dtype: Any = None
    all_to_all: Callable[[jax.Array], jax.Array] | None = None

    @property
    def experts_per_rank(self) -> int:
        """L."""
        return -(-self.num_experts // self.num_ranks)

    def _all_to_all(self, blocks: jax.Array) -> jax.Array:
        if self.all_to_all is not None:
            return self.all_to_all(blocks)
        return lax.all_to_all(blocks, self.axis_name, split_axis=0, concat_axis=0, tiled=True)

    def dispatch(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> Dispatched:
        """Sends each token to the ranks of its experts.

        Args:
          x: [T, H].
          experts: int32[T, K]; ids outside [0, E) are not routed.
          weights: [T, K].
        """
        tokens, ranks, local = x.shape[0], self.num_ranks, self.experts_per_rank
        named = experts[..., None] == jnp.arange(ranks * local, dtype=experts.dtype)
        named &= (experts < self.num_experts)[..., None]
        wanted = named.any(axis=1).reshape(tokens, ranks, local)
        dense_weights = jnp.where(named, weights.astype(jnp.float32)[..., None], 0.0)
        dense_weights = dense_weights.sum(axis=1).reshape(tokens, ranks, local)

        # Rows that go to a rank come first in its block, by rising token.
        goes = wanted.any(axis=-1)  # [T, N]
        order = jnp.argsort(~goes, axis=0, stable=True).T  # [N, T]
        goes_sorted = jnp.take_along_axis(goes.T, order, axis=1)
        rows = jnp.where(goes_sorted[..., None], x[order], jnp.zeros((), x.dtype))
        block = jnp.arange(ranks)[:, None]
        received = self._all_to_all(rows).reshape(ranks * tokens, -1)
        wanted = self._all_to_all(wanted[order, block]).reshape(ranks * tokens, local)
        dense_weights = self._all_to_all(dense_weights[order, block]).reshape(-1, local)

        # By (expert, source rank, token): the order in which nonzero meets them.
        capacity = self.capacity
        if capacity is None:
            capacity = ranks * self.max_tokens * min(self.top_k, local)
        (place,) = jnp.nonzero(wanted.T.reshape(-1), size=capacity, fill_value=-1)
        used = place >= 0
        slot = jnp.where(used, place % (ranks * tokens), -1)
        sizes = wanted.sum(axis=0, dtype=jnp.int32)
        ends = jnp.minimum(jnp.cumsum(sizes), capacity)
        position = jnp.cumsum(goes, axis=0, dtype=jnp.int32) - 1
        return Dispatched(
            tokens=jnp.where(used[:, None], received[slot], jnp.zeros((), x.dtype)),
            weights=jnp.where(used, dense_weights.T.reshape(-1)[place], 0.0),
            group_sizes=(ends - jnp.concatenate([jnp.zeros((1,), ends.dtype), ends[:-1]])),
            dropped=jnp.maximum(sizes.sum() - capacity, 0).reshape(1),
            slot=slot,
            returns=jnp.where(goes, position, -1),
        )

    def combine(self, y: jax.Array, dispatched: Dispatched, *, weighted: bool = True) -> jax.Array:
        """Brings the experts' rows back and sums them for each token.

        Args:
          y: [C, H], the experts' outputs for ``dispatched.tokens``.
          dispatched: what :meth:`dispatch` returned.
          weighted: whether rows are multiplied by ``dispatched.weights`` first.

        Returns:
          [T, H] in the dtype of `y`.
        """
        tokens, ranks = dispatched.returns.shape
        used = (dispatched.slot >= 0)[:, None]
        rows = jnp.where(used, y.astype(jnp.float32), 0.0)
        if weighted:
            rows *= dispatched.weights[:, None]
        beyond = ranks * tokens
        sums = jnp.zeros((beyond, y.shape[1]), jnp.float32)
        sums = sums.at[jnp.where(used[:, 0], dispatched.slot, beyond)].add(rows, mode="drop")
        sums = sums.astype(self.combine_dtype or y.dtype).reshape(ranks, tokens, -1)
        back = self._all_to_all(sums)
        rows = back[jnp.arange(ranks), dispatched.returns]  # [T, N, H]
        came = (dispatched.returns >= 0)[..., None]
        return jnp.where(came, rows.astype(jnp.float32), 0.0).sum(axis=1).astype(y.dtype)
