"""Routings for tests: which experts each token goes to, from a seed.

Every generator returns a :class:`Routing` for all ranks at once. :data:`GENERATORS` names them all,
so that a test can run over every kind::

    @pytest.mark.parametrize("kind", routing.GENERATORS)
    def test_dispatch(kind):
        r = routing.generate(kind, ranks=8, tokens=16, experts=32, top_k=4, seed=0)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

UNROUTED = -1


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes that a routing is made for.

    Attributes:
      ranks: N.
      tokens: T, tokens of each rank; may be 0.
      experts: E.
      top_k: K, at most E.
    """

    ranks: int
    tokens: int
    experts: int
    top_k: int

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
          ValueError: a size is too small, or K > E.
        """
        for name, least in (("ranks", 1), ("tokens", 0), ("experts", 1), ("top_k", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {least} or more")
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) is more than experts ({self.experts})")

    @property
    def experts_per_rank(self) -> int:
        """Experts of a rank, the last ranks may have fewer: ceil(E / N)."""
        return -(-self.experts // self.ranks)

    def experts_of(self, rank: int) -> np.ndarray:
        """Returns the ids of the experts that live on `rank`; empty where E is small."""
        first = rank * self.experts_per_rank
        return np.arange(first, min(first + self.experts_per_rank, self.experts))


@dataclasses.dataclass(frozen=True)
class Routing:
    """Where the tokens of all ranks go.

    Attributes:
      experts: int32 [N, T, K]; ids outside [0, E) are not routed.
      weights: float32 [N, T, K], positive; those of a token sum to 1.
    """

    experts: np.ndarray
    weights: np.ndarray


_Generator = Callable[[Shape, np.random.Generator], np.ndarray]


def _distinct(
    shape: Shape, rng: np.random.Generator, probabilities: np.ndarray | None = None
) -> np.ndarray:
    """Draws K distinct experts a token, with the given preference (Gumbel top-k)."""
    size = (shape.ranks, shape.tokens, shape.experts)
    scores = rng.gumbel(size=size)
    if probabilities is not None:
        scores += np.log(probabilities)
    return np.argsort(-scores, axis=-1)[..., : shape.top_k]


def _uniform(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return _distinct(shape, rng)


def _one(shape: Shape, expert: int) -> np.ndarray:
    ids = np.full((shape.ranks, shape.tokens, shape.top_k), UNROUTED)
    ids[..., 0] = expert
    return ids


def _first_expert(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return _one(shape, 0)


def _last_expert(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return _one(shape, shape.experts - 1)


def _one_rank(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """All tokens to all experts of one rank, as far as K goes."""
    with_experts = [r for r in range(shape.ranks) if len(shape.experts_of(r))]
    local = shape.experts_of(int(rng.choice(with_experts)))
    ids = np.full((shape.ranks, shape.tokens, shape.top_k), UNROUTED)
    used = min(shape.top_k, len(local))
    order = np.argsort(rng.random((shape.ranks, shape.tokens, len(local))), axis=-1)
    ids[..., :used] = local[order[..., :used]]
    return ids


def _own_rank(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """No token leaves its rank."""
    ids = np.full((shape.ranks, shape.tokens, shape.top_k), UNROUTED)
    for rank in range(shape.ranks):
        local = shape.experts_of(rank)
        used = min(shape.top_k, len(local))
        order = np.argsort(rng.random((shape.tokens, len(local))), axis=-1)
        ids[rank, :, :used] = local[order[:, :used]] if used else UNROUTED
    return ids


def _zipf(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Popular experts: the i-th most popular has a share of i ** -1.2."""
    share = np.arange(1, shape.experts + 1) ** -1.2
    return _distinct(shape, rng, rng.permutation(share / share.sum()))


def _holes(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """One entry of each token is not routed, by any of the ids that say so."""
    ids = _distinct(shape, rng)
    limits = np.iinfo(np.int32)
    outside = np.array([UNROUTED, shape.experts, limits.min, limits.max])
    tokens = (shape.ranks, shape.tokens)
    place = rng.integers(shape.top_k, size=tokens)
    np.put_along_axis(ids, place[..., None], rng.choice(outside, size=tokens)[..., None], axis=-1)
    return ids


def _unrouted(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return np.full((shape.ranks, shape.tokens, shape.top_k), UNROUTED)


def _last_row_only(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    ids = _distinct(shape, rng)
    ids[:, :-1] = UNROUTED
    return ids


def _duplicates(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Experts drawn with repetition, so tokens name an expert twice; the first token K times."""
    ids = rng.integers(shape.experts, size=(shape.ranks, shape.tokens, shape.top_k))
    ids[:, :1] = ids[:, :1, :1]
    return ids


def _silent_ranks(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Every second rank, rank 0 first, sends nothing; all others send everything."""
    ids = _distinct(shape, rng)
    ids[::2] = UNROUTED
    return ids


def _deaf_ranks(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Nothing goes to the experts of every second rank, rank 0 first."""
    ids = _distinct(shape, rng)
    ids[(ids // shape.experts_per_rank) % 2 == 0] = UNROUTED
    return ids


GENERATORS: dict[str, _Generator] = {
    "uniform": _uniform,
    "first_expert": _first_expert,
    "last_expert": _last_expert,
    "one_rank": _one_rank,
    "own_rank": _own_rank,
    "zipf": _zipf,
    "holes": _holes,
    "unrouted": _unrouted,
    "last_row_only": _last_row_only,
    "duplicates": _duplicates,
    "silent_ranks": _silent_ranks,
    "deaf_ranks": _deaf_ranks,
}


def generate(
    kind: str, *, ranks: int, tokens: int, experts: int, top_k: int, seed: int = 0
) -> Routing:
    """Returns a routing of the given kind, the same for the same arguments.

    Args:
      kind: a key of :data:`GENERATORS`.
      ranks: N.
      tokens: T, tokens of each rank; may be 0.
      experts: E.
      top_k: K, at most E.
      seed: of the pseudo-random numbers.

    Raises:
      ValueError: an unknown kind, a size that is too small, or K > E.
    """
    if kind not in GENERATORS:
        raise ValueError(f"no routing is called {kind!r}; there are: {', '.join(GENERATORS)}")
    shape = Shape(ranks, tokens, experts, top_k)
    rng = np.random.default_rng(seed)
    experts_of_tokens = GENERATORS[kind](shape, rng).astype(np.int32)
    weights = rng.uniform(0.1, 1.0, size=experts_of_tokens.shape)
    weights /= weights.sum(axis=-1, keepdims=True)
    return Routing(experts_of_tokens, weights.astype(np.float32))
