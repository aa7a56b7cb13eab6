"""One run of the model: a protocol, a NIC, a number of ranks."""

from __future__ import annotations

import dataclasses
import statistics

from jax_fabric import _core
from jax_fabric.simulate.config import (
    MOST_CHANNEL_RANKS,
    REPRESENTATIVES,
    MoeSimulationConfig,
    Protocol,
)
from jax_fabric.simulate.constants import NicConstants


@dataclasses.dataclass(frozen=True)
class Times:
    """What came of a run; every value is of one rank in one call, microseconds.

    Attributes:
      dispatch_us: from the launch of the send kernel to the end of the receive kernel.
      combine_us: the same.
      writes: of a rank in a dispatch and a combine, on average.
      wire_bytes: that a rank's NIC sent in them, on average.
      representatives: how many ranks were run for all.
    """

    dispatch_us: tuple[float, ...]
    combine_us: tuple[float, ...]
    writes: int
    wire_bytes: int
    representatives: int

    @property
    def p50_us(self) -> tuple[float, float]:
        """Medians of dispatch and combine."""
        return statistics.median(self.dispatch_us), statistics.median(self.combine_us)


def runs(protocol: Protocol, ranks: int) -> bool:
    """Whether so many ranks can be run; in a channel none can stand for others."""
    return protocol != "channel" or ranks <= MOST_CHANNEL_RANKS


def run(config: MoeSimulationConfig, protocol: Protocol, nic: NicConstants, ranks: int) -> Times:
    """Runs the model.

    Args:
      config: sizes.
      protocol: "channel" is this library as it is; "rounds" posts the same messages from a
        program, without the channel's announcements; "two_phases" is the paper's.
      nic: its constants.
      ranks: of them, at most :data:`REPRESENTATIVES` are run where there are more than
        :data:`MOST_CHANNEL_RANKS`.

    Raises:
      InvalidArgument: a value that cannot be.
    """
    few = ranks > MOST_CHANNEL_RANKS
    private = config.private_tokens_of(nic) if protocol == "two_phases" else config.slot_tokens
    times = _core.simulate_moe(
        protocol=protocol,
        ranks=ranks,
        representatives=REPRESENTATIVES if few else 0,
        node_ranks=config.node_ranks,
        experts=config.experts_of(ranks),
        top_k=config.top_k,
        tokens=config.tokens,
        hidden=config.hidden,
        private_tokens=private or config.tokens,
        calls=config.calls,
        seed=config.seed,
        between_us=15.0,  # the paper: shuffling takes about as long
        latency_us=nic.latency_us,
        bytes_per_ns=nic.bytes_per_ns,
        post_us=nic.post_us,
        **dataclasses.asdict(nic.kernels.for_tokens(config.tokens)),
    )
    return Times(
        tuple(times.dispatch_us),
        tuple(times.combine_us),
        times.writes,
        times.wire_bytes,
        REPRESENTATIVES if few else ranks,
    )
