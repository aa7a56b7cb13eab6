"""Configuration of the MoE demonstration."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jax_fabric.arguments import check_whole_numbers

_LONGEST_SEQUENCE = 64


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Sizes of the model and of the run.

    Attributes:
      ranks: N, devices over which experts and batch are spread.
      processes: they share the ranks evenly.
      tokens: T, characters in each rank's part of the batch.
      hidden: H, elements of a token's row.
      experts: E, experts of each layer, over all ranks.
      top_k: K, experts of each token.
      layers: transformer blocks.
      private_tokens: see ``ExpertParallelConfig``; None: ``tokens``.
      steps: of training.
      dtype: of activations; parameters and sums are float32.
      learning_rate: of Adam.
      seed: of parameters and batches.
      repeats: timed calls of dispatch and combine.
      domain: how rows travel, as in ``Fabric``; None: as the environment says.
      provider: of libfabric, as in ``Fabric``; "fakesrd": "efa" on a fake NIC of this machine.
      timeout_s: of every wait for another rank; long, because processes compile side by side and
        one may be ready much earlier than another.
    """

    ranks: int = 8
    processes: int = 1
    tokens: int = 128
    hidden: int = 64
    experts: int = 16
    top_k: int = 2
    layers: int = 2
    private_tokens: int | None = None
    steps: int = 60
    dtype: Literal["float32", "bfloat16"] = "float32"
    learning_rate: float = 5e-3
    seed: int = 0
    repeats: int = 30
    domain: Literal["local", "efa", "connectx"] | None = None
    provider: str | None = None
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          ValueError: names the value, and what is accepted.
        """
        check_whole_numbers(self)
        if self.steps < 2:
            raise ValueError("steps is 1; it must be 2 or more, or no loss can fall")
        if self.ranks % self.processes:
            raise ValueError(
                f"ranks ({self.ranks}) must be a multiple of processes ({self.processes})"
            )
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) is more than experts ({self.experts})")
        if self.private_tokens is not None and self.private_tokens > self.tokens:
            raise ValueError(
                f"private_tokens ({self.private_tokens}) is more than tokens ({self.tokens})"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype is {self.dtype!r}; it must be float32 or bfloat16")

    @property
    def local_ranks(self) -> int:
        """Ranks of each process."""
        return self.ranks // self.processes

    @property
    def sequence(self) -> int:
        """Characters of a row of the batch: the largest part of `tokens` up to 64."""
        return max(n for n in range(1, _LONGEST_SEQUENCE + 1) if self.tokens % n == 0)

    @property
    def rows(self) -> int:
        """Rows of each rank's batch."""
        return self.tokens // self.sequence

    @property
    def experts_per_rank(self) -> int:
        """L = ceil(E / N); the last ranks may have fewer."""
        return -(-self.experts // self.ranks)

    @property
    def heads(self) -> int:
        """Attention heads, of 16 elements where `hidden` allows it."""
        return max(1, self.hidden // 16) if self.hidden % 16 == 0 else 1

    @property
    def expert_hidden(self) -> int:
        """Elements of an expert's inner layer."""
        return self.hidden
