// MemoryTable: what this domain has registered, by the keys that requests carry.
//
// Any thread registers and deregisters; the worker holds a region while the provider may touch it. One word a region,
// generation and count of holders, decides: a region that is held is not deregistered, and one that is gone is not
// held.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_NIC_MEMORY_TABLE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_NIC_MEMORY_TABLE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "csrc/base/stable_table.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/nic/memory_registrar.h"

namespace jax_fabric::nic {

// What a peer has to present to write: the provider's key, and what only this incarnation's key goes with, so that a
// key of somebody else is refused before it is on the wire.
inline uint64_t SealRemoteKey(uint64_t provider_key, uint64_t incarnation) {
  uint64_t x = incarnation + provider_key * 0x9e3779b97f4a7c15ull;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) << 32 | provider_key;
}
// False: not a key of that incarnation.
inline bool OpenRemoteKey(uint64_t remote_key, uint64_t incarnation, uint64_t& provider_key) {
  provider_key = remote_key & 0xffffffff;
  return remote_key == SealRemoteKey(provider_key, incarnation);
}

struct HeldRegion {
  std::atomic<uint64_t> state{0};  // generation << 32 | holders; 0: free
  uint64_t address = 0;
  uint64_t length = 0;
  Registration registration;
  MemoryKind kind = MemoryKind::kHost;
  Access access = Access::kLocalOnly;
};

class MemoryTable {
 public:
  MemoryTable(MemoryRegistrar& registrar, uint64_t incarnation);
  ~MemoryTable();

  Result<MemoryRegion> Register(void* address, uint64_t length, MemoryKind kind, Access access);
  Status Deregister(const MemoryRegion& region);

  // The worker: the region with that key, held until Release; null when there is none or [address, address + length)
  // is not inside of it, with the reason in `why`.
  HeldRegion* Hold(uint64_t local_key, const void* address, uint64_t length, const char*& why) {
    HeldRegion* region = HoldKey(local_key);
    if (region != nullptr && Contains(region->address, region->length, reinterpret_cast<uint64_t>(address), length)) {
      return region;
    }
    why = region == nullptr ? "the local key belongs to no registered memory"
                            : "the memory is not inside of the registered region";
    if (region != nullptr) Release(*region);
    return nullptr;
  }
  void Release(HeldRegion& region) {
    region.state.fetch_sub(kOneHolder, std::memory_order_release);  // partner: Deregister
  }
  // The same for a write to this domain itself: by the provider's key.
  HeldRegion* HoldTarget(uint64_t provider_key, uint64_t remote_address, uint64_t length, const char*& why);
  // Where a remote address of a held region lies.
  std::byte* Target(const HeldRegion& region, uint64_t remote_address) const;

 private:
  static constexpr uint64_t kOneHolder = 1;
  static constexpr uint64_t kHolders = 0xffffffff;

  static bool Contains(uint64_t begin, uint64_t size, uint64_t address, uint64_t length) {
    return address >= begin && length <= size && address - begin <= size - length;
  }
  HeldRegion* HoldKey(uint64_t local_key) {
    HeldRegion* region = regions_.Find(static_cast<uint32_t>(local_key));
    if (region == nullptr) return nullptr;
    const uint64_t generation = local_key & ~kHolders;
    uint64_t state = region->state.load(std::memory_order_relaxed);
    do {
      if (generation == 0 || (state & ~kHolders) != generation) return nullptr;
      // Acquire, partner: the release in Register.
    } while (!region->state.compare_exchange_weak(state, state + kOneHolder, std::memory_order_acquire,
                                                  std::memory_order_relaxed));
    return region;
  }

  MemoryRegistrar& registrar_;
  const uint64_t incarnation_;
  StableTable<HeldRegion, 64, 1024> regions_;
  std::mutex mutex_;  // registering, deregistering, and writes to oneself
  std::vector<uint32_t> free_;
  uint32_t made_ = 0;
  uint32_t next_generation_ = 0;
  std::unordered_map<uint64_t, uint64_t> local_keys_;  // by the provider's key, of what may be written to
};

}  // namespace jax_fabric::nic

#endif  // JAX_FABRIC_ENGINE_DOMAINS_NIC_MEMORY_TABLE_H_
