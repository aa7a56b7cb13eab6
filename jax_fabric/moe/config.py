"""Configuration of expert-parallel layers: what must be equal on all ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jax_fabric import _core
from jax_fabric.arguments import MAX_I32, integer, seconds

ROW_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
#: Rows of dispatch may be quantised to it, with a float32 scale for each block of SCALE_BLOCK
#: elements.
QUANTISED_DTYPE = jnp.float8_e4m3fn
SCALE_BLOCK = 128
_MOST_CHANNELS = 64


@dataclasses.dataclass(frozen=True)
class ExpertParallelConfig:
    """Shapes and limits of an expert-parallel context.

    Attributes:
      num_ranks: N, size of the mesh axis.
      num_experts: E over all ranks. Expert e lives on rank ``e // experts_per_rank``; the last
        ranks may have fewer.
      top_k: K, experts a token.
      max_tokens: T, rows of x a call on each rank at most.
      hidden: H, elements a row.
      dtype: of x and of the rows that combine takes: float32, bfloat16 or float16.
      combine_dtype: of the partial sums on their way back; default: ``dtype``. The sums themselves
        are made in float32.
      private_tokens: P, rows that one rank sends to another at once; default: ``max_tokens``. A
        call takes one round if no rank has more for another, and further rounds where one has, up
        to ``max_rounds``. Results are the same bits for every P: it only trades memory against
        rounds, see ``memory_bytes``.
      dispatch_dtype: of the rows on their way to the experts: ``dtype``, which is the default, or
        float8_e4m3fn: x is then quantised as it is sent (see ``ExpertParallel``). Gradients travel
        in ``dtype``.
      tokens_dtype: of the rows that experts get. Default: ``dispatch_dtype``, so that quantised
        rows stay so and come with their scales; float32, bfloat16 or float16 turns them back on
        receipt.
      capacity: rows that a rank's experts get at most, all together; default: what can never
        overflow, ``N * T * min(K, experts_per_rank)``.
      on_overflow: "error" raises on all ranks, but under vmap, where the counts of one element are
        known to its rank only: that one raises, the others in their next call, with
        its words. "drop" leaves rows out and counts them in ``Dispatched.dropped``.
      channels: exchanges that may be in flight at once.
      timeout_s: of every wait for another rank, seconds.
    """

    num_ranks: int
    num_experts: int
    top_k: int
    max_tokens: int
    hidden: int
    dtype: Any = jnp.bfloat16
    combine_dtype: Any = None
    private_tokens: int | None = None
    dispatch_dtype: Any = None
    tokens_dtype: Any = None
    capacity: int | None = None
    on_overflow: Literal["error", "drop"] = "error"
    channels: int = 1
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        """Checks every argument.

        Raises:
          ValueError: names the argument, its value and what is accepted.
        """
        for name in ("num_ranks", "num_experts", "top_k", "max_tokens", "hidden", "channels"):
            most = _MOST_CHANNELS if name == "channels" else MAX_I32
            value = integer(name, getattr(self, name), least=1, most=most)
            object.__setattr__(self, name, value)
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k={self.top_k}: must be at most num_experts={self.num_experts}")
        if self.private_tokens is None:
            object.__setattr__(self, "private_tokens", self.max_tokens)
        try:
            private_tokens = integer("private_tokens", self.private_tokens, 1, self.max_tokens)
        except ValueError:
            raise ValueError(
                f"private_tokens={self.private_tokens!r}: must be a whole number in [1, "
                f"max_tokens={self.max_tokens}]"
            ) from None
        object.__setattr__(self, "private_tokens", private_tokens)
        timeout_s = seconds("timeout_s", self.timeout_s, above_zero=True)
        object.__setattr__(self, "timeout_s", timeout_s)
        if self.on_overflow not in ("error", "drop"):
            raise ValueError(f'on_overflow={self.on_overflow!r}: must be "error" or "drop"')
        object.__setattr__(self, "dtype", self._row_dtype("dtype", self.dtype))
        combine_dtype = self.dtype if self.combine_dtype is None else self.combine_dtype
        object.__setattr__(self, "combine_dtype", self._row_dtype("combine_dtype", combine_dtype))
        self._set_dispatch_dtypes()
        most = self.num_ranks * self.max_tokens * self.local_top_k
        if self.capacity is None and most > MAX_I32:
            raise ValueError(
                f"capacity=None: max_tokens={self.max_tokens} on {self.num_ranks} ranks can be "
                f"{most} rows for one rank, and capacity is at most {MAX_I32}: pass capacity="
            )
        capacity = most if self.capacity is None else self.capacity
        object.__setattr__(self, "capacity", integer("capacity", capacity, 1, MAX_I32))

    def _set_dispatch_dtypes(self) -> None:
        quantised = np.dtype(QUANTISED_DTYPE)
        dispatch_dtype = self.dtype if self.dispatch_dtype is None else self.dispatch_dtype
        dispatch_dtype = self._one_of("dispatch_dtype", dispatch_dtype, (self.dtype, quantised))
        tokens_dtype = dispatch_dtype if self.tokens_dtype is None else self.tokens_dtype
        accepted = (quantised, *ROW_DTYPES) if dispatch_dtype == quantised else (self.dtype,)
        tokens_dtype = self._one_of("tokens_dtype", tokens_dtype, accepted)
        object.__setattr__(self, "dispatch_dtype", dispatch_dtype)
        object.__setattr__(self, "tokens_dtype", tokens_dtype)

    @classmethod
    def _row_dtype(cls, name: str, dtype: Any) -> np.dtype:
        return cls._one_of(name, dtype, ROW_DTYPES)

    @staticmethod
    def _one_of(name: str, dtype: Any, accepted: Sequence[Any]) -> np.dtype:
        accepted = [np.dtype(each) for each in accepted]
        try:
            result = np.dtype(dtype)
        except TypeError:
            result = None
        if result not in accepted:
            raise ValueError(
                f"{name}={dtype!r}: must be one of {', '.join(str(each) for each in accepted)}"
            )
        return result

    @property
    def quantised(self) -> bool:
        """Whether rows of dispatch travel quantised, with scales."""
        return self.dispatch_dtype == np.dtype(QUANTISED_DTYPE)

    @property
    def raw_tokens(self) -> bool:
        """Whether experts get the rows quantised, with scales."""
        return self.tokens_dtype == np.dtype(QUANTISED_DTYPE)

    @property
    def scales_per_row(self) -> int:
        """Scales of a quantised row: one for each ``SCALE_BLOCK`` elements or less."""
        return -(-self.hidden // SCALE_BLOCK)

    @property
    def experts_per_rank(self) -> int:
        """E_local: experts of one rank."""
        return -(-self.num_experts // self.num_ranks)

    @property
    def local_top_k(self) -> int:
        """Experts of one rank that one token can have at most."""
        return min(self.top_k, self.experts_per_rank)

    @property
    def max_rounds(self) -> int:
        """Rounds that a call takes at most, however its rows are routed."""
        return -(-self.max_tokens // self.private_tokens)

    def native(
        self, rank: int, *, membership_epoch: int = 0, absent: Sequence[bool] = ()
    ) -> _core.MoeConfig:
        """The same for the engine, as seen from one rank, and who takes part."""
        return _core.MoeConfig(
            ranks=self.num_ranks,
            rank=rank,
            experts=self.num_experts,
            max_tokens=self.max_tokens,
            private_tokens=self.private_tokens,
            top_k=self.top_k,
            hidden=self.hidden,
            capacity=self.capacity,
            dispatch_type=str(self.dispatch_dtype),
            combine_type=str(self.combine_dtype),
            redispatch_type=str(self.dtype),
            channels=self.channels,
            timeout_us=int(self.timeout_s * 1e6),
            drop_overflow=self.on_overflow == "drop",
            membership_epoch=membership_epoch,
            absent=[int(each) for each in absent],
        )

    def memory_bytes(self) -> int:
        """Engine-owned memory of one rank, bytes: slots of every source, parity and channel.

        A slot holds ``private_tokens`` rows, and for ``max_tokens`` rows what says where they go.
        For a prefill of 8192 tokens of 7168 bfloat16 on 8 ranks:

        >>> sizes = dict(num_ranks=8, num_experts=256, top_k=8, max_tokens=8192, hidden=7168)
        >>> for private_tokens in (8192, 2048, 512, 256, 128, 32):
        ...     config = ExpertParallelConfig(**sizes, private_tokens=private_tokens)
        ...     megabytes, rounds = config.memory_bytes() / 1e6, config.max_rounds
        ...     print(f"P {private_tokens:4}: {megabytes:6.1f} MB, {rounds:3} rounds or less")
        P 8192: 1888.5 MB,   1 rounds or less
        P 2048:  479.2 MB,   4 rounds or less
        P  512:  126.9 MB,  16 rounds or less
        P  256:   68.2 MB,  32 rounds or less
        P  128:   38.8 MB,  64 rounds or less
        P   32:   16.8 MB, 256 rounds or less
        """
        return self.native(0).memory_bytes()
