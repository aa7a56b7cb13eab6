// The owner's side of the table of registered regions in its mailbox. Thread-safe.
//
// A key is the entry's index (low 20 bits) and 43 random bits that are new for every registration: a stale or guessed
// key is refused, and finding the entry costs no search.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_REGION_TABLE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_REGION_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/local/mailbox.h"
#include "csrc/engine/domains/local/shared_memory.h"

namespace jax_fabric::local {

constexpr int kKeyIndexBits = 20;
constexpr uint32_t KeyIndex(uint64_t key) { return static_cast<uint32_t>(key & ((1u << kKeyIndexBits) - 1)); }

class RegionTable {
 public:
  explicit RegionTable(std::shared_ptr<Mailbox> mailbox);

  Result<MemoryRegion> Add(void* address, uint64_t length, Access access);
  // Returns when no peer is inside the region any more; kFailedPrecondition while a request of this domain uses it.
  Status Remove(const MemoryRegion& region);
  // At the end of the domain: as Remove, for all and whatever uses them.
  void RemoveAll();

  // Whether the range lies in the region that the key names.
  bool Contains(uint64_t key, const void* address, uint64_t length) const;
  // A request that outlives its Post call holds the region of its source. False: the key names no region.
  bool Hold(uint64_t key);
  void Release(uint64_t key);
  // The memory of a region that is held.
  ByteView Held(uint64_t key) const;

  // Copies what a peer has sent into the region that it named, if it may. Checks against what only this process can
  // change, not against the table in the mailbox.
  bool Land(uint64_t key, uint64_t address, ByteView bytes);

  // The file behind a region that peers may write; its descriptor goes to a peer that has shown the key.
  Result<std::shared_ptr<const SharedMemoryFile>> FileOf(uint64_t key) const;

 private:
  struct Record {
    // Holders of the source region. kRemoved keeps new ones out while the region goes.
    std::atomic<uint32_t> holders{kRemoved};
    std::shared_ptr<const SharedMemoryFile> file;  // guarded by mutex_
    uint64_t draining_key = 0;                     // guarded by mutex_: invalid, but a peer may still be inside
    // As registered, without a key otherwise. Guarded by mutex_.
    MemoryRegion region;
    Access access = Access::kLocalOnly;
  };
  static constexpr uint32_t kRemoved = 1u << 31;

  // Takes the key away, so that nobody new enters. Under mutex_.
  Status Invalidate(uint32_t index, const MemoryRegion& region);
  // Waits until no lane is inside the region.
  Status Drain(uint32_t index) const;
  Status DrainLane(uint32_t lane, uint32_t index) const;

  const std::shared_ptr<Mailbox> mailbox_;
  mutable std::mutex mutex_;
  std::vector<Record> records_;
  std::vector<uint32_t> free_;  // guarded by mutex_
  uint32_t touched_ = 0;        // guarded by mutex_: entries below were in use at some time
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_REGION_TABLE_H_
