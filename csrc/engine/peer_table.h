#ifndef JAX_FABRIC_ENGINE_PEER_TABLE_H_
#define JAX_FABRIC_ENGINE_PEER_TABLE_H_

#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "csrc/base/stable_table.h"
#include "csrc/base/status.h"
#include "csrc/engine/peer.h"
#include "csrc/engine/peer_address.h"

namespace jax_fabric {

// The peers of a group by handle. Handles are dense and never reused.
class PeerTable {
 public:
  // Any thread; takes no lock. Null when the handle was never given out.
  Peer* Find(PeerHandle handle) const {
    return handle < count_.load(std::memory_order_acquire) ? peers_.Find(handle) : nullptr;  // partner: Add
  }

  // The peer, and whether it is new: then the caller has it connected. `bytes` is what `address` was parsed from.
  Result<std::pair<Peer*, bool>> Add(ByteView bytes, PeerAddress address, uint64_t own_max_write_bytes);

  // Its address may be added again and gives a new peer then.
  void Forget(Peer& peer);

 private:
  std::mutex mutex_;
  std::map<Bytes, Peer*> by_address_;
  StableTable<Peer, 64, 16384> peers_;
  std::atomic<uint32_t> count_{0};
  uint64_t added_ = 0;  // under the mutex: peers that there ever were
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_PEER_TABLE_H_
