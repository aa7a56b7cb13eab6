// A lock-free stack of indices: the free list of a pool. Any thread pushes and pops.
#ifndef JAX_FABRIC_BASE_INDEX_STACK_H_
#define JAX_FABRIC_BASE_INDEX_STACK_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "csrc/base/stable_table.h"

namespace jax_fabric {

class IndexStack {
 public:
  static constexpr uint32_t kCapacity = 64 * 4096;

  // Room for indices below `size`. One caller at a time.
  void Reserve(uint32_t size) { below_.Reserve(size); }

  // `index` is not on the stack and below what was reserved.
  void Push(uint32_t index) {
    uint64_t top = top_.load(std::memory_order_relaxed);
    uint64_t pushed;
    do {
      below_.Find(index)->store(static_cast<uint32_t>(top), std::memory_order_relaxed);  // published by the release
      pushed = Next(top) | (index + 1);
      // Release, partner: the acquire in Pop.
    } while (!top_.compare_exchange_weak(top, pushed, std::memory_order_release, std::memory_order_relaxed));
  }

  std::optional<uint32_t> Pop() {
    uint64_t top = top_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(top) != 0) {
      const uint32_t index = static_cast<uint32_t>(top) - 1;
      // May be stale when another thread has popped the index meanwhile; then `top` has changed, the exchange fails.
      const uint64_t below = below_.Find(index)->load(std::memory_order_relaxed);
      if (top_.compare_exchange_weak(top, Next(top) | below, std::memory_order_acquire, std::memory_order_acquire)) {
        return index;
      }
    }
    return std::nullopt;
  }

 private:
  // The upper half counts changes, so that an index that went and came back is noticed.
  static uint64_t Next(uint64_t top) { return ((top >> 32) + 1) << 32; }

  std::atomic<uint64_t> top_{0};  // below: index + 1, or 0 when empty
  StableTable<std::atomic<uint32_t>, 64, 4096> below_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_INDEX_STACK_H_
