"""The peer "lean JAX": the least that brings every token to its ranks and back.

It leaves out what :mod:`~jax_fabric.bench.peers.plain_jax` does for real experts: rows stay as they
came, so there are no groups of rows for one expert, and a row that goes to several experts of a
rank is there once, with the sum of their weights. That is right only where all experts do the same;
it bounds from below what any exchange with ``lax.all_to_all`` takes.

Letters in shapes: N ranks, T tokens of each rank, K experts of a token, L experts of a rank, H
elements of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Received:
    """Rows that came to this rank.

    Attributes:
      tokens: [N * T, H], by (source rank, token); rows that were not sent are 0.
      weights: float32[N * T], sum of the weights of this rank's experts.
      place: int32[T, N], of a token in the block that went to a rank; T where it did not go.
    """

    tokens: jax.Array
    weights: jax.Array
    place: jax.Array


@dataclasses.dataclass(frozen=True)
class LeanExpertParallel:
    """Dispatch and combine over one mesh axis; call them inside ``shard_map``.

    Attributes:
      num_ranks: N, size of the axis.
      axis_name: the mesh axis.
      num_experts: E; expert e lives on rank ``e // L``.
      all_to_all: exchanges [N, ...]; default: ``lax.all_to_all`` over the axis.
    """

    num_ranks: int
    axis_name: str
    num_experts: int
    all_to_all: Callable[[jax.Array], jax.Array] | None = None

    def _all_to_all(self, blocks: jax.Array) -> jax.Array:
        if self.all_to_all is not None:
            return self.all_to_all(blocks)
        return lax.all_to_all(blocks, self.axis_name, split_axis=0, concat_axis=0, tiled=True)

    def dispatch(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> Received:
        """Sends each token to the ranks of its experts.

        Args:
          x: [T, H].
          experts: int32[T, K], all in [0, E).
          weights: [T, K].
        """
        tokens, ranks = x.shape[0], self.num_ranks
        rank = experts // -(-self.num_experts // ranks)
        there = rank[..., None] == jnp.arange(ranks, dtype=rank.dtype)  # [T, K, N]
        goes = there.any(axis=1)
        sums = jnp.where(there, weights.astype(jnp.float32)[..., None], 0.0).sum(axis=1)

        place = jnp.where(goes, jnp.cumsum(goes, axis=0, dtype=jnp.int32) - 1, tokens)
        # Which token lies at each place of each block; places that nobody has get the row of zeros.
        of_place = jnp.full((ranks, tokens + 1), tokens, jnp.int32)
        numbers = jnp.arange(tokens, dtype=jnp.int32)[:, None]
        of_place = of_place.at[jnp.arange(ranks), place].set(numbers)[:, :tokens]
        padded = jnp.concatenate([x, jnp.zeros((1, x.shape[1]), x.dtype)])
        padded_sums = jnp.concatenate([sums, jnp.zeros((1, ranks), sums.dtype)])
        return Received(
            tokens=self._all_to_all(padded[of_place]).reshape(ranks * tokens, -1),
            weights=self._all_to_all(padded_sums[of_place, jnp.arange(ranks)[:, None]]).reshape(-1),
            place=place,
        )

    def combine(self, y: jax.Array, received: Received) -> jax.Array:
        """Brings the rows back, weighted, and sums them for each token.

        Args:
          y: [N * T, H], the results for ``received.tokens``.
          received: what :meth:`dispatch` returned.

        Returns:
          [T, H] in the dtype of `y`.
        """
        tokens, ranks = received.place.shape
        weighted = (y.astype(jnp.float32) * received.weights[:, None]).astype(y.dtype)
        back = self._all_to_all(weighted.reshape(ranks, tokens, -1))
        nothing = jnp.zeros((ranks, 1, back.shape[2]), back.dtype)
        rows = jnp.concatenate([back, nothing], axis=1)[jnp.arange(ranks), received.place]
        return rows.astype(jnp.float32).sum(axis=1).astype(y.dtype)
