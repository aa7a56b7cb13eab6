// Watches every byte that a simulated fabric lets land in the memory of MoE contexts: none outside of a message slot,
// an announcement or a failure notice, none in a slot twice before the rank has read it, and none in a notice twice. A
// rank's stores into mapped slots are not seen.
#ifndef JAX_FABRIC_MOE_TESTING_DELIVERY_GUARD_H_
#define JAX_FABRIC_MOE_TESTING_DELIVERY_GUARD_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "csrc/moe/moe_config.h"

namespace jax_fabric::moe::testing {

class DeliveryGuard {
 public:
  // The memory of a context that lies at `memory`.
  void Watch(const MoeConfig& config, std::byte* memory);
  // The boards of its failure notices.
  void WatchNotices(const MoeConfig& config, std::byte* memory);
  // Bytes [address, end) have landed.
  void Landed(uint64_t address, uint64_t end);
  // The messages in these slots, one for each rank, have been read: they are poisoned, and others may come.
  void HaveRead(const void* const* slots, int32_t ranks);

  // The first thing that was wrong, or empty.
  const std::string& violation() const { return violation_; }
  uint64_t landed_bytes() const { return landed_bytes_; }

 private:
  struct Window {
    uint64_t end = 0;
    bool once = false;                                  // a slot, or a notice
    std::vector<std::pair<uint64_t, uint64_t>> landed;  // since it was read
  };
  void Violate(const std::string& what, uint64_t address, uint64_t end);

  std::map<uint64_t, Window> windows_;  // by first byte
  std::string violation_;
  uint64_t landed_bytes_ = 0;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_DELIVERY_GUARD_H_
