// RegistrationCache: what is registered with the NICs of a group.
//
// A request that lies inside a registration of the same kind and access shares it; anything else makes a new one, also
// where ranges overlap. The last release deregisters at once: a range that its owner may unmap is never kept.
//
// Look-ups by id (the way of a request) take no lock; everything else is control path under a mutex.
#ifndef JAX_FABRIC_ENGINE_REGISTRATION_CACHE_H_
#define JAX_FABRIC_ENGINE_REGISTRATION_CACHE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "csrc/base/stable_table.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/memory.h"
#include "csrc/engine/piece_layout.h"

namespace jax_fabric {

// Memory of this process that its NICs registered in pieces (piece_layout.h).
struct LocalPieces {
  uint64_t stride = 0;
  std::vector<std::array<MemoryRegion, kMaxNics>> regions;

  // For a part that begins `offset` bytes behind the first byte of all.
  uint64_t KeyAt(uint64_t offset, size_t nic) const {
    return regions[PieceAt(offset, stride, regions.size())][nic].local_key;
  }
};

class RegistrationCache {
 public:
  // The range as it is registered, one MemoryRegion for each NIC.
  struct Entry {
    uint64_t address = 0;
    uint64_t length = 0;
    MemoryKind kind = MemoryKind::kHost;
    Access access = Access::kLocalOnly;
    std::array<MemoryRegion, kMaxNics> regions{};  // of the first piece
    std::shared_ptr<const LocalPieces> pieces;     // null: it is one
  };

  explicit RegistrationCache(std::span<const std::unique_ptr<Domain>> domains)
      : domains_(domains), write_limit_(GroupWriteLimit(domains)) {}
  // Deregisters what is left.
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  Result<RegisteredMemory> Register(void* address, uint64_t length, MemoryKind kind, Access access);
  // kFailedPrecondition while a domain still uses it: it stays registered, and nothing new shares it.
  Status Release(const RegisteredMemory& memory);

  // Null when `memory` is not what Register returned, or has been released for good. The entry must not be looked at
  // once the owner of `memory` has released it.
  const Entry* Find(const RegisteredMemory& memory) const;

  // Of `entry`, which Find gave for `memory`: as peers see it.
  RemoteMemory Describe(const RegisteredMemory& memory, const Entry& entry) const;

  size_t size() const;  // registrations that exist

 private:
  struct Slot : Entry {
    // The id that is valid now, or 0. Release in Register, acquire in Find.
    std::atomic<uint32_t> id{0};
    // Under the mutex:
    uint32_t index = 0;
    uint32_t references = 0;
    uint32_t uses = 0;        // ids that this slot has had
    uint32_t registered = 0;  // regions: all NICs of the first piece, of the second, ...
    bool closing = false;     // nothing new may share it
    std::multimap<uint64_t, Slot*>::iterator position;
  };
  // Ids: the slot's index below, how often it was used above, so that an id is not mistaken for a later one.
  static constexpr uint32_t kIndexBits = 18;
  static constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1;

  Slot* FindSharable(uint64_t address, uint64_t length, MemoryKind kind, Access access);
  Result<Slot*> MakeSlot();
  Status RegisterWithNics(Slot& slot, const PieceLayout& layout);
  Status DeregisterFromNics(Slot& slot);

  const std::span<const std::unique_ptr<Domain>> domains_;
  const uint64_t write_limit_;
  mutable std::mutex mutex_;
  StableTable<Slot, 64, (1u << kIndexBits) / 64> slots_;
  uint32_t slot_count_ = 0;
  std::vector<uint32_t> free_slots_;
  std::multimap<uint64_t, Slot*> by_address_;  // first byte
  uint64_t longest_ = 0;  // of all ever registered: how far before an address a range around it may begin
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_REGISTRATION_CACHE_H_
