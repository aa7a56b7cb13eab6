#include "csrc/engine/domains/nic/memory_table.h"

#include <utility>

namespace jax_fabric::nic {
MemoryTable::MemoryTable(MemoryRegistrar& registrar, uint64_t incarnation)
    : registrar_(registrar), incarnation_(incarnation), next_generation_(static_cast<uint32_t>(incarnation >> 33)) {}

MemoryTable::~MemoryTable() {
  for (uint32_t i = 0; i < made_; ++i) regions_.Find(i)->registration = {};
}

Result<MemoryRegion> MemoryTable::Register(void* address, uint64_t length, MemoryKind kind, Access access) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  if (address == nullptr || length == 0 || begin + length < begin) {
    return MakeError(ErrorCode::kInvalidArgument, "{} bytes at {} cannot be registered: give a range of memory", length,
                     address);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty() && made_ == regions_.kCapacity) {
    return MakeError(ErrorCode::kResourceExhausted, "{} regions are registered: deregister some", made_);
  }
  JF_ASSIGN_OR_RETURN(Registration registration, registrar_.Map(address, length, kind, access));
  const uint64_t provider_key = registration.provider_key;
  // What peers cannot write to needs none.
  if (access == Access::kRemoteWrite && (provider_key == 0 || provider_key > 0xffffffff)) {
    return MakeError(ErrorCode::kUnimplemented, "the provider's key {:#x} does not fit into 32 bits", provider_key);
  }
  if (free_.empty()) {
    regions_.Reserve(made_ + 1);
    free_.push_back(made_++);
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  HeldRegion& region = *regions_.Find(index);
  region.address = begin;
  region.length = length;
  region.registration = std::move(registration);
  region.kind = kind;
  region.access = access;
  if (++next_generation_ == 0) ++next_generation_;
  const uint64_t generation = uint64_t{next_generation_} << 32;
  // Release, partner: the acquire in HoldKey.
  region.state.store(generation, std::memory_order_release);
  MemoryRegion result{begin, length, registrar_.virtual_addresses() ? begin : 0, generation | index, 0, kind};
  if (access == Access::kRemoteWrite) {
    result.remote_key = SealRemoteKey(provider_key, incarnation_);
    local_keys_[provider_key] = result.local_key;
  }
  return result;
}

Status MemoryTable::Deregister(const MemoryRegion& region) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto index = static_cast<uint32_t>(region.local_key);
  HeldRegion* held = regions_.Find(index);
  uint64_t expected = region.local_key & ~kHolders;
  // Acquire, partner: the release in Release, so that the provider is done with it.
  if (held == nullptr || expected == 0 ||
      !held->state.compare_exchange_strong(expected, 0, std::memory_order_acquire, std::memory_order_relaxed)) {
    if (held != nullptr && (expected & ~kHolders) == (region.local_key & ~kHolders) && expected != 0) {
      return MakeError(ErrorCode::kFailedPrecondition, "{} posted requests use the region: wait for them",
                       expected & kHolders);
    }
    return MakeError(ErrorCode::kNotFound, "the region is not registered here, or not any more");
  }
  local_keys_.erase(held->registration.provider_key);
  held->registration = {};
  free_.push_back(index);
  return {};
}

HeldRegion* MemoryTable::HoldTarget(uint64_t provider_key, uint64_t remote_address, uint64_t length, const char*& why) {
  uint64_t local_key = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = local_keys_.find(provider_key); found != local_keys_.end()) local_key = found->second;
  }
  HeldRegion* region = HoldKey(local_key);
  if (region == nullptr) {
    why = "the remote key belongs to no memory that may be written to";
  } else if (!Contains(registrar_.virtual_addresses() ? region->address : 0, region->length, remote_address, length)) {
    why = "the remote address is not inside of the registered region";
    Release(*region);
    region = nullptr;
  }
  return region;
}

std::byte* MemoryTable::Target(const HeldRegion& region, uint64_t remote_address) const {
  return reinterpret_cast<std::byte*>(registrar_.virtual_addresses() ? remote_address
                                                                     : region.address + remote_address);
}

}  // namespace jax_fabric::nic
