"""Configuration of the transfer benchmark."""

from __future__ import annotations

import dataclasses

from jax_fabric.arguments import check_whole_numbers

#: What transfers are measured beside, besides memcpy.
TRANSFER_PEERS = ("nixl",)
#: Single writes that are under way at a time.
WINDOW = 4


@dataclasses.dataclass(frozen=True)
class TransferBenchConfig:
    """Sizes of the transfers and of the run.

    Attributes:
      write_mib: sizes of single writes, MiB.
      page_kib: sizes of pages, KiB.
      small_batch_mib: pages of one paged write, all together, that the cache may hold.
      large_batch_mib: the same beyond any cache.
      peers: to measure against, out of :data:`TRANSFER_PEERS`.
      repetitions: timed runs of each contender.
      round_trips: of each run of the latency measurements.
      seed: of the order of pages.
      timeout_s: of every wait.
    """

    write_mib: tuple[int, ...] = (1, 4, 16, 64)
    page_kib: tuple[int, ...] = (1, 4, 16, 64)
    small_batch_mib: int = 1
    large_batch_mib: int = 64
    peers: tuple[str, ...] = ()
    repetitions: int = 9
    round_trips: int = 2000
    seed: int = 0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          ValueError: names the value, and what is accepted.
        """
        check_whole_numbers(self)
        for name in ("write_mib", "page_kib"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; each must be 1 or more")
        if max(self.page_kib) * 1024 > self.small_batch_mib << 20:
            raise ValueError(
                f"page_kib has {max(self.page_kib)}; a page must not exceed small_batch_mib "
                f"({self.small_batch_mib})"
            )
        for peer in self.peers:
            if peer not in TRANSFER_PEERS:
                raise ValueError(f"peer {peer!r} is not known; known: {', '.join(TRANSFER_PEERS)}")

    @property
    def memory_bytes(self) -> int:
        """Of each of the two sides: writes that are under way together do not share bytes."""
        writes_mib = WINDOW * max(self.write_mib)
        return max(writes_mib, self.small_batch_mib, self.large_batch_mib) << 20
