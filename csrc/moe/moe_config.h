// Configuration of one expert-parallel context: the same on all ranks, checked when they connect.
#ifndef JAX_FABRIC_MOE_MOE_CONFIG_H_
#define JAX_FABRIC_MOE_MOE_CONFIG_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::moe {

struct MoeConfig {
  kernels::SlotLayout layout;
  int32_t channels = 2;             // exchanges that may be in flight at once, each with its own slots
  int64_t timeout_us = 30'000'000;  // of every wait for a peer
  // Whoever ends as it should has the messages of all others, which are then on their way to us, too. A rank that dies
  // may have sent its message and not its immediate, and others may have heard of that before they sent theirs: what
  // is not here so long after a loss does not come.
  int64_t LossGraceUs() const { return std::min(timeout_us, std::max<int64_t>(1'000'000, timeout_us / 10)); }
  bool drop_overflow = false;
  // Who takes part. Ranks are lost and the others go on without them in a new context, one epoch later: experts of
  // absent ranks are routed to nowhere, and nobody waits for their messages.
  uint32_t membership_epoch = 0;
  std::vector<uint8_t> absent;  // [ranks], not 0 for an absent one; or empty, and all are there

  bool IsAbsent(int32_t rank) const { return !absent.empty() && absent[rank] != 0; }
  int32_t PresentRanks() const;
  // The one that numbers the calls: the first that is there.
  int32_t Leader() const;
  // Slots of all sources, parities and channels, and the announcement rings; bytes of engine-owned memory.
  int64_t MemoryBytes() const;
  int64_t ChannelOffset(int32_t channel) const { return channel * layout.ChannelBytes(); }
  int64_t RingOffset(int32_t channel) const;
  // Names the argument, its value and what is accepted.
  Status Validate() const;
  // Equal on all ranks of a context; `rank` is left out.
  uint64_t Hash() const;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_MOE_CONFIG_H_
