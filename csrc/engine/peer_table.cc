#include "csrc/engine/peer_table.h"

#include "csrc/engine/shard_plan.h"

namespace jax_fabric {
namespace {

// A peer gets 2^40 sequence numbers for messages.
constexpr int kMessageBits = 40;

}  // namespace

Result<std::pair<Peer*, bool>> PeerTable::Add(ByteView bytes, PeerAddress address, uint64_t own_max_write_bytes) {
  std::lock_guard lock(mutex_);
  Bytes key(bytes.begin(), bytes.end());
  if (auto known = by_address_.find(key); known != by_address_.end()) return std::pair(known->second, false);
  const uint32_t handle = count_.load(std::memory_order_relaxed);  // only changed below, under the mutex
  if (handle >= peers_.kCapacity) {
    return MakeError(ErrorCode::kResourceExhausted, "add peer '{}': this group has had {} peers; make a new engine",
                     address.name, handle);
  }
  peers_.Reserve(handle + 1);
  Peer& peer = *peers_.Find(handle);
  peer.handle = handle;
  peer.label = fmt::format("peer {} '{}'", handle, address.name);
  peer.part_limit = PartLimit(own_max_write_bytes, address.max_write_bytes);
  peer.address = std::move(address);
  peer.next_message.store(added_++ << kMessageBits, std::memory_order_relaxed);  // published with count_
  peer.connect.peer = peer.remove.peer = &peer;
  peer.address_bytes = key;
  by_address_.emplace(std::move(key), &peer);
  count_.store(handle + 1, std::memory_order_release);  // partner: Find
  return std::pair(&peer, true);
}

void PeerTable::Forget(Peer& peer) {
  std::lock_guard lock(mutex_);
  if (auto known = by_address_.find(peer.address_bytes); known != by_address_.end() && known->second == &peer) {
    by_address_.erase(known);
  }
}

}  // namespace jax_fabric
