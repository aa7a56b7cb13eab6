"""Every number that the model is told, and where it is from.

"The paper": "RDMA Point-to-Point Communication for LLM Systems", arXiv 2510.27656. Its figures are
p50, in microseconds, for 128 tokens of 7168 elements on each rank, 8 of 256 experts each, float8 on
their way to the experts and bfloat16 back, 8 ranks on each node.
"""

from __future__ import annotations

import dataclasses

#: Ranks whose figures the constants were fitted on; the others were never shown to the fit.
FITTED_RANKS = (16, 64)
CHECKED_RANKS = (32,)
PAPER_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class KernelTimes:
    """What the paper states of its kernels and of its host proxy at EP64, microseconds.

    Attributes:
      launch_us: from the launch to the first transfer; part of every send kernel.
      dispatch_send_us: the kernel alone, and so on.
      dispatch_receive_us: see above.
      combine_send_us: the middle of 13.1 to 13.7.
      combine_receive_us: see above.
      host_us: from a kernel's word to the first post: 0.12 + 0.86 + 0.44.
    """

    launch_us: float
    dispatch_send_us: float
    dispatch_receive_us: float
    combine_send_us: float
    combine_receive_us: float
    host_us: float = 1.42

    def for_tokens(self, tokens: int) -> KernelTimes:
        """Returns them for another number of tokens.

        An assumption, for the paper has no such figures: what of the dispatch's send kernel is not
        launch moves 128 tokens' rows; every kernel takes that much longer for each 128 tokens more,
        and none gets shorter with fewer.
        """
        more = max(0.0, tokens / PAPER_TOKENS - 1) * (self.dispatch_send_us - self.launch_us)
        return dataclasses.replace(
            self,
            dispatch_send_us=self.dispatch_send_us + more,
            dispatch_receive_us=self.dispatch_receive_us + more,
            combine_send_us=self.combine_send_us + more,
            combine_receive_us=self.combine_receive_us + more,
        )


@dataclasses.dataclass(frozen=True)
class NicConstants:
    """A NIC, as the model sees it.

    Attributes:
      name: of the kind.
      latency_us: from port to port, with whatever else a message waits for. Fitted.
      bytes_per_ns: that each port moves, in each direction (GB/s). Fitted.
      post_us: for each request. The paper's, at EP64: all 63 posted after 8.50 us (ConnectX-7) and
        27.89 us (EFA).
      private_tokens: P of the paper's protocol that the paper uses on this NIC.
      kernels: the paper's.
    """

    name: str
    latency_us: float
    bytes_per_ns: float
    post_us: float
    private_tokens: int
    kernels: KernelTimes


# latency_us and bytes_per_ns: `jax-fabric simulate fit` prints them again (least squares on
# PAPER_DECODE_US at FITTED_RANKS, of the two-phase protocol); tests/simulate_test.py holds them to
# that.
CONNECTX7 = NicConstants(
    name="connectx7",
    latency_us=1.0,
    bytes_per_ns=50.0,
    post_us=8.50 / 63,
    private_tokens=24,
    kernels=KernelTimes(15.0, 17.9, 25.7, 13.4, 15.0),
)
EFA = NicConstants(
    name="efa",
    latency_us=42.3,
    bytes_per_ns=50.0,
    post_us=27.89 / 63,
    private_tokens=32,
    kernels=KernelTimes(15.0, 20.5, 24.9, 13.4, 15.0),
)
NICS = {nic.name: nic for nic in (CONNECTX7, EFA)}

#: NIC -> ranks -> (dispatch, combine), p50 in us, of the paper's own implementation. Ranks of one
#: node (EP8: 50.5 and 65.3, 49.7 and 64.2) exchange over NVLink alone, of which the model knows
#: nothing.
PAPER_DECODE_US = {
    "connectx7": {16: (110.2, 185.5), 32: (153.9, 266.3), 64: (187.5, 309.1)},
    "efa": {16: (214.8, 241.5), 32: (229.1, 335.0), 64: (266.7, 391.2)},
}
#: The same for 4,096 tokens, in us (the paper says ms). Not fitted on.
PAPER_PREFILL_TOKENS = 4096
PAPER_PREFILL_US = {
    "connectx7": {64: (4670.0, 8770.0)},
    "efa": {16: (3200.0, 5380.0), 32: (4620.0, 8270.0), 64: (5330.0, 9780.0)},
}
