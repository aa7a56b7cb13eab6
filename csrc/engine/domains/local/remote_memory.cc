#include "csrc/engine/domains/local/remote_memory.h"

#include <algorithm>
#include <utility>

namespace jax_fabric::local {
namespace {

constexpr int64_t kFetchTimeoutUs = 5'000'000;

}  // namespace

RemoteMemory::RemoteMemory(const LocalAddress& address, const Mailbox& mailbox, std::shared_ptr<const FabricKey> key)
    : address_(address), mailbox_(mailbox), key_(std::move(key)) {}

Result<const MemoryMapping*> RemoteMemory::Find(uint64_t memory_id, uint64_t key) {
  for (const Entry& entry : cache_) {
    if (entry.memory_id == memory_id) return entry.mapping.get();
  }
  if (auto mapping = Lookup(memory_id, false)) {
    cache_.push_back({memory_id, std::move(mapping)});
    return cache_.back().mapping.get();
  }
  if (!fetch_) {
    fetch_.emplace(address_, RequestFor(key), key_, Deadline::After(SteadyClock::Get(), kFetchTimeoutUs));
    fetch_memory_id_ = memory_id;
  }
  auto received = fetch_->Poll();
  if (!received) return nullptr;
  fetch_.reset();
  // The answer belongs to whatever was asked for; if it was other memory, that one's next Find meets it in the cache.
  const bool ours = fetch_memory_id_ == memory_id;
  if (!received->has_value()) {
    if (ours) return tl::unexpected<Error>(received->error());
    return nullptr;
  }
  auto mapping = Insert(*std::move(*received), fetch_memory_id_, false);
  if (!mapping.has_value()) {
    if (ours) return tl::unexpected<Error>(mapping.error());
    return nullptr;
  }
  // Others may have gone from entries_; the cache follows it.
  std::erase_if(cache_, [&](const Entry& entry) { return !IsRegistered(entry.memory_id); });
  cache_.push_back({fetch_memory_id_, *std::move(mapping)});
  return ours ? cache_.back().mapping.get() : nullptr;
}

Result<const MemoryMapping*> RemoteMemory::FindAndKeep(uint64_t memory_id, uint64_t key, Deadline deadline) {
  if (auto mapping = Lookup(memory_id, true)) return mapping.get();
  DescriptorClient client(address_, RequestFor(key), key_, deadline);
  JF_ASSIGN_OR_RETURN(auto received, client.Wait());
  JF_ASSIGN_OR_RETURN(auto mapping, Insert(std::move(received), memory_id, true));
  return mapping.get();
}

Result<std::shared_ptr<const MemoryMapping>> RemoteMemory::Insert(ReceivedDescriptors received, uint64_t memory_id,
                                                                  bool keep) {
  if (received.memory_id != memory_id) {
    return MakeError(ErrorCode::kAborted, "process {} registered other memory under the same key in the meantime",
                     address_.process.pid);
  }
  JF_ASSIGN_OR_RETURN(MemoryMapping mapped, MemoryMapping::Map(received.descriptors[0].get()));
  auto mapping = std::make_shared<const MemoryMapping>(std::move(mapped));
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.memory_id != memory_id) continue;  // the other thread was first
    entry.keep |= keep;
    return entry.mapping;
  }
  DropUnregistered();
  entries_.push_back({memory_id, mapping, keep});
  return mapping;
}

void RemoteMemory::DropUnregistered() {
  std::erase_if(entries_, [&](const Entry& entry) { return !entry.keep && !IsRegistered(entry.memory_id); });
}

bool RemoteMemory::IsRegistered(uint64_t memory_id) const {
  for (uint32_t i = 0; i < mailbox_.geometry().regions; ++i) {
    const RegionEntry& region = mailbox_.region(i);
    // Relaxed: only a hint; what is dropped too early is fetched again.
    if (region.key.load(std::memory_order_relaxed) != 0 &&
        region.memory_id.load(std::memory_order_relaxed) == memory_id) {
      return true;
    }
  }
  return false;
}

std::shared_ptr<const MemoryMapping> RemoteMemory::Lookup(uint64_t memory_id, bool keep) {
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.memory_id != memory_id) continue;
    entry.keep |= keep;
    return entry.mapping;
  }
  return nullptr;
}

DescriptorRequest RemoteMemory::RequestFor(uint64_t key) const {
  DescriptorRequest request;
  request.kind = DescriptorRequest::kMemory;
  request.incarnation = address_.incarnation;
  request.key = key;
  return request;
}

}  // namespace jax_fabric::local
