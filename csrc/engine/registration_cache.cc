#include "csrc/engine/registration_cache.h"

#include <algorithm>
#include <limits>

namespace jax_fabric {

// Domains free what they hold when they go, and take leave of their peers first: a key that is refused before that
// would look like a mistake of the peer's.
RegistrationCache::~RegistrationCache() = default;

RegistrationCache::Slot* RegistrationCache::FindSharable(uint64_t address, uint64_t length, MemoryKind kind,
                                                         Access access) {
  for (auto it = by_address_.upper_bound(address); it != by_address_.begin();) {
    --it;
    Slot& slot = *it->second;
    if (address - slot.address >= longest_) return nullptr;
    if (slot.kind == kind && slot.access == access && !slot.closing && address - slot.address <= slot.length &&
        length <= slot.length - (address - slot.address)) {
      return &slot;
    }
  }
  return nullptr;
}

Result<RegistrationCache::Slot*> RegistrationCache::MakeSlot() {
  uint32_t index;
  if (!free_slots_.empty()) {
    index = free_slots_.back();
    free_slots_.pop_back();
  } else if (slot_count_ < slots_.kCapacity) {
    index = slot_count_++;
    slots_.Reserve(slot_count_);
  } else {
    return MakeError(ErrorCode::kResourceExhausted, "register memory: {} ranges are registered; deregister some",
                     slot_count_);
  }
  Slot& slot = *slots_.Find(index);
  slot.uses = std::max(1u, (slot.uses + 1) & (std::numeric_limits<uint32_t>::max() >> kIndexBits));
  slot.index = index;
  slot.registered = 0;
  slot.closing = false;
  return &slot;
}

Status RegistrationCache::RegisterWithNics(Slot& slot, const PieceLayout& layout) {
  auto pieces = std::make_shared<LocalPieces>();
  pieces->stride = layout.stride;
  pieces->regions.resize(layout.count);
  Status status;
  for (uint64_t i = 0; i < layout.count && status.has_value(); ++i) {
    const uint64_t offset = i * layout.stride;
    const uint64_t length = std::min(layout.bytes, slot.length - offset);
    for (size_t nic = 0; nic < domains_.size() && status.has_value(); ++nic) {
      Result<MemoryRegion> region =
          domains_[nic]->RegisterMemory(reinterpret_cast<void*>(slot.address + offset), length, slot.kind, slot.access);
      if (!region.has_value()) {
        status = tl::unexpected<Error>(std::move(region).error());
        break;
      }
      pieces->regions[i][nic] = *region;
      ++slot.registered;
    }
  }
  slot.regions = pieces->regions[0];
  slot.pieces = layout.count > 1 ? std::move(pieces) : nullptr;
  if (!status.has_value()) {
    [[maybe_unused]] const Status undone = DeregisterFromNics(slot);  // the first cause is what to tell
  }
  return status;
}

Status RegistrationCache::DeregisterFromNics(Slot& slot) {
  for (; slot.registered > 0; --slot.registered) {
    const size_t piece = (slot.registered - 1) / domains_.size(), nic = (slot.registered - 1) % domains_.size();
    JF_RETURN_IF_ERROR(
        domains_[nic]->DeregisterMemory(slot.pieces ? slot.pieces->regions[piece][nic] : slot.regions[nic]));
  }
  return {};
}

Result<RegisteredMemory> RegistrationCache::Register(void* address, uint64_t length, MemoryKind kind, Access access) {
  const uint64_t first = reinterpret_cast<uint64_t>(address);
  if (address == nullptr || length == 0 || first + length < first) {
    return MakeError(ErrorCode::kInvalidArgument, "register memory: {} bytes at {} are no range of memory", length,
                     address);
  }
  const PieceLayout layout = LayoutOf(length, domains_, write_limit_);
  if (layout.count > PieceLayout::kMaxPieces) {
    return MakeError(
        ErrorCode::kOutOfRange,
        "register memory: {} bytes are {} pieces of at most {}, as the NICs take them, and {} are possible", length,
        layout.count, layout.bytes, PieceLayout::kMaxPieces);
  }
  std::lock_guard lock(mutex_);
  Slot* slot = FindSharable(first, length, kind, access);
  if (slot == nullptr) {
    JF_ASSIGN_OR_RETURN(slot, MakeSlot());
    const uint32_t index = slot->index;
    slot->address = first;
    slot->length = length;
    slot->kind = kind;
    slot->access = access;
    slot->references = 0;
    if (Status status = RegisterWithNics(*slot, layout); !status.has_value()) {
      if (slot->registered == 0) free_slots_.push_back(index);
      return tl::unexpected<Error>(std::move(status).error());
    }
    longest_ = std::max(longest_, length);
    slot->position = by_address_.emplace(first, slot);
    slot->id.store(slot->uses << kIndexBits | index, std::memory_order_release);  // partner: Find
  }
  ++slot->references;
  return RegisteredMemory{address, length, slot->id.load(std::memory_order_relaxed)};
}

Status RegistrationCache::Release(const RegisteredMemory& memory) {
  std::lock_guard lock(mutex_);
  Slot* slot = slots_.Find(memory.id & kIndexMask);
  if (slot == nullptr || memory.id == 0 || slot->id.load(std::memory_order_relaxed) != memory.id) {
    return MakeError(ErrorCode::kNotFound, "deregister memory: {} bytes at {} (id {}) are not registered",
                     memory.length, memory.address, memory.id);
  }
  if (slot->references > 1) {
    --slot->references;
    return {};
  }
  slot->closing = true;
  JF_RETURN_IF_ERROR(DeregisterFromNics(*slot));
  slot->references = 0;
  slot->id.store(0, std::memory_order_release);
  slot->pieces = nullptr;  // requests that have not ended keep them
  by_address_.erase(slot->position);
  free_slots_.push_back(memory.id & kIndexMask);
  return {};
}

const RegistrationCache::Entry* RegistrationCache::Find(const RegisteredMemory& memory) const {
  const Slot* slot = slots_.Find(memory.id & kIndexMask);
  if (slot == nullptr || memory.id == 0 || slot->id.load(std::memory_order_acquire) != memory.id) return nullptr;
  const uint64_t first = reinterpret_cast<uint64_t>(memory.address);
  const bool inside = first >= slot->address && first - slot->address <= slot->length &&
                      memory.length <= slot->length - (first - slot->address);
  return inside ? slot : nullptr;
}

RemoteMemory RegistrationCache::Describe(const RegisteredMemory& memory, const Entry& entry) const {
  RemoteMemory remote;
  remote.length = memory.length;
  uint64_t offset = reinterpret_cast<uint64_t>(memory.address) - entry.address;
  const auto describe = [this](const std::array<MemoryRegion, kMaxNics>& regions, uint64_t at,
                               std::vector<RemoteMemory::Nic>& nics) {
    for (size_t nic = 0; nic < domains_.size(); ++nic) {
      nics.push_back({regions[nic].remote_address + at, regions[nic].remote_key});
    }
  };
  if (entry.pieces == nullptr) {
    describe(entry.regions, offset, remote.nics);
    return remote;
  }
  const auto& [stride, regions] = *entry.pieces;
  const uint64_t first = PieceAt(offset, stride, regions.size());
  const uint64_t last = PieceAt(offset + memory.length - 1, stride, regions.size());
  offset -= first * stride;
  describe(regions[first], offset, remote.nics);
  if (first == last) return remote;
  RemoteMemory::Pieces pieces{.stride = stride, .offset = offset, .nics = {}};
  for (uint64_t piece = first; piece <= last; ++piece) describe(regions[piece], 0, pieces.nics);
  remote.pieces = std::make_shared<const RemoteMemory::Pieces>(std::move(pieces));
  return remote;
}

size_t RegistrationCache::size() const {
  std::lock_guard lock(mutex_);
  return by_address_.size();
}

}  // namespace jax_fabric
