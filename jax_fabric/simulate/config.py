"""Configuration of the model of MoE exchanges."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jax_fabric.arguments import check_whole_numbers
from jax_fabric.simulate.constants import NICS, NicConstants

Protocol = Literal["channel", "rounds", "two_phases"]

#: More ranks than this are not all run: so many stand for all.
MOST_CHANNEL_RANKS = 256
REPRESENTATIVES = 64


@dataclasses.dataclass(frozen=True)
class MoeSimulationConfig:
    """Sizes of the exchanges, and how they are run.

    Attributes:
      nics: names out of :data:`jax_fabric.simulate.constants.NICS`.
      ranks: each a run of its own; several nodes' worth.
      node_ranks: ranks of a node, which reach each other without the NIC.
      tokens: T, of each rank.
      hidden: H, elements of a token's row.
      top_k: K, experts of each token.
      experts: E, over all ranks; more where there are more ranks than that.
      private_tokens: P of the two-phase protocol; None: what the paper uses on each NIC.
      slot_tokens: P of this library, rows from rank to rank in a round; None: ``tokens``.
      calls: dispatches and combines of each run, each with another routing.
      seed: of the routings.
    """

    nics: tuple[str, ...] = tuple(NICS)
    ranks: tuple[int, ...] = (16, 32, 64, 128, 256, 1024)
    node_ranks: int = 8
    tokens: int = 128
    hidden: int = 7168
    top_k: int = 8
    experts: int = 256
    private_tokens: int | None = None
    slot_tokens: int | None = None
    calls: int = 3
    seed: int = 1

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          ValueError: names the value, and what is accepted.
        """
        check_whole_numbers(self)
        for nic in self.nics:
            if nic not in NICS:
                raise ValueError(f"nic {nic!r} is not known; there are {', '.join(NICS)}")
        for ranks in self.ranks:
            if not self.node_ranks < ranks <= 4096:
                raise ValueError(
                    f"ranks {ranks}: must be more than node_ranks ({self.node_ranks}), for the "
                    "ranks of one node exchange without a NIC, and at most 4096"
                )
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) is more than experts ({self.experts})")

    def experts_of(self, ranks: int) -> int:
        """Returns E for so many ranks: each has one expert at least."""
        return max(self.experts, ranks)

    def private_tokens_of(self, nic: NicConstants) -> int:
        """Returns P of the two-phase protocol on a NIC."""
        return nic.private_tokens if self.private_tokens is None else self.private_tokens

    def case(self, nic: NicConstants, ranks: int) -> str:
        """Returns what a run is, for the rows."""
        return (
            f"{nic.name}, EP {ranks}, T {self.tokens}, H {self.hidden}, K {self.top_k}, "
            f"E {self.experts_of(ranks)}"
        )
