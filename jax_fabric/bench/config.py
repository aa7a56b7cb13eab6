"""Configuration of the MoE benchmark."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp

from jax_fabric.arguments import check_whole_numbers
from jax_fabric.moe.config import SCALE_BLOCK

#: Peers of a run in one process, and of one in several.
PEERS_OF_ONE_PROCESS = ("plain_jax",)
PEERS_OF_PROCESSES = ("gloo", "mpi4jax")
PEERS = (*PEERS_OF_ONE_PROCESS, *PEERS_OF_PROCESSES)


@dataclasses.dataclass(frozen=True)
class MoeBenchConfig:
    """Sizes of the exchange and of the run.

    Attributes:
      ranks: N, devices over which the experts are spread.
      processes: they share the ranks evenly.
      tokens: T, of each rank.
      hidden: H, elements of a token's row.
      dtype: of the rows.
      dispatch_dtype: of jax_fabric's rows on their way to the experts, who get them in `dtype`;
        None: `dtype`. Peers send `dtype`.
      top_k: K, experts of each token.
      experts: E, over all ranks.
      private_tokens: see ``ExpertParallelConfig``; None: ``tokens``.
      peers: to measure against, out of :data:`PEERS`.
      repetitions: timed calls of each contender.
      small_repetitions: the same where a call moves almost nothing.
      small_peers: whether peers are measured there, too.
      seed: of rows and routings.
      timeout_s: of every wait for another rank; long, because the first call compiles.
    """

    ranks: int = 8
    processes: int = 1
    tokens: int = 128
    hidden: int = 7168
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    dispatch_dtype: Literal["float8_e4m3fn"] | None = None
    top_k: int = 8
    experts: int = 64
    private_tokens: int | None = None
    peers: tuple[str, ...] = PEERS_OF_ONE_PROCESS
    repetitions: int = 9
    small_repetitions: int = 60
    small_peers: bool = True
    seed: int = 0
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          ValueError: names the value, and what is accepted.
        """
        check_whole_numbers(self)
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
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"dtype is {self.dtype!r}; it must be float32, bfloat16 or float16")
        if self.dispatch_dtype not in (None, "float8_e4m3fn"):
            raise ValueError(f"dispatch_dtype is {self.dispatch_dtype!r}; it must be float8_e4m3fn")
        accepted = PEERS_OF_ONE_PROCESS if self.processes == 1 else PEERS_OF_PROCESSES
        for peer in self.peers:
            if peer not in accepted:
                raise ValueError(
                    f"peer {peer!r} does not run in {self.processes} process(es); "
                    f"there: {', '.join(accepted)}"
                )
        if "mpi4jax" in self.peers and self.ranks != self.processes:
            raise ValueError("mpi4jax has one rank in each process: ranks must equal processes")

    @property
    def local_ranks(self) -> int:
        """Ranks of each process."""
        return self.ranks // self.processes

    @property
    def case(self) -> str:
        """What was measured, for the rows."""
        ranks = f"{self.ranks} ranks" if self.ranks != 1 else "1 rank"
        processes = f"{self.processes} processes" if self.processes != 1 else "1 process"
        dispatched = f" (dispatched as {self.dispatch_dtype})" if self.dispatch_dtype else ""
        private_tokens = "" if self.private_tokens is None else f", P {self.private_tokens}"
        return (
            f"{ranks}, {processes}, T {self.tokens}, H {self.hidden} {self.dtype}{dispatched}, "
            f"K {self.top_k}, E {self.experts}{private_tokens}"
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of a token's row."""
        return self.hidden * jnp.dtype(self.dtype).itemsize

    @property
    def dispatch_row_bytes(self) -> int:
        """Bytes of a row on its way to the experts, scales included."""
        if self.dispatch_dtype is None:
            return self.row_bytes
        return self.hidden + 4 * -(-self.hidden // SCALE_BLOCK)
