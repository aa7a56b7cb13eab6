// Loopback: writes of a domain to itself, by the CPU, a slice a poll. No NIC sends to itself as it sends to others.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_NIC_LOOPBACK_H_
#define JAX_FABRIC_ENGINE_DOMAINS_NIC_LOOPBACK_H_

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/nic/memory_table.h"

namespace jax_fabric::nic {

struct LoopbackWrite {
  PeerId peer = Completion::kUnknownPeer;
  uint64_t context = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  uint64_t length = 0;
  std::optional<uint32_t> immediate;
  HeldRegion* source_region = nullptr;  // null for an empty write
  HeldRegion* target_region = nullptr;
};

class Loopback {
 public:
  explicit Loopback(MemoryTable& memory) : memory_(memory) {}
  ~Loopback() {
    while (!writes_.empty()) Drop();
  }

  bool empty() const { return writes_.empty(); }
  // A write of the domain with that incarnation to itself. Null, or why it cannot be; then nothing is posted.
  const char* Post(const WriteRequest& request, uint64_t incarnation);
  // The next write that is done, if one is after this slice; then Drop.
  const LoopbackWrite* Advance() {
    if (writes_.empty()) return nullptr;
    const LoopbackWrite& write = writes_.front();
    const uint64_t slice = std::min(kSliceBytes, write.length - done_);
    if (slice > 0) std::memmove(write.target + done_, write.source + done_, slice);
    done_ += slice;
    return done_ == write.length ? &write : nullptr;
  }
  const LoopbackWrite& front() const { return writes_.front(); }
  void Drop() {
    if (writes_.front().source_region != nullptr) memory_.Release(*writes_.front().source_region);
    memory_.Release(*writes_.front().target_region);
    writes_.pop_front();
    done_ = 0;
  }

 private:
  static constexpr uint64_t kSliceBytes = 256 * 1024;

  MemoryTable& memory_;
  std::deque<LoopbackWrite> writes_;
  uint64_t done_ = 0;  // of the first one
};

}  // namespace jax_fabric::nic

#endif  // JAX_FABRIC_ENGINE_DOMAINS_NIC_LOOPBACK_H_
