// The ranks of one expert-parallel context, as one of them sees them: where their slots are and which immediates
// they handed out.
#ifndef JAX_FABRIC_MOE_PEER_TABLE_H_
#define JAX_FABRIC_MOE_PEER_TABLE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/engine/domain_group.h"

namespace jax_fabric::moe {

// Immediate ids of one channel, counted from the first one that the rank handed out for it.
enum class ChannelImmediate : uint32_t {
  kEvenExchange = 0,
  kOddExchange = 1,
  kAnnouncement = 2,
  // Comes with a failure notice. An expectation on it is a timer on the worker's clock, too, which notices and the loss
  // of a peer end.
  kAlarm = 3,
};
inline constexpr uint32_t kImmediatesPerChannel = 4;

// Of an exchange, by its number's parity.
constexpr ChannelImmediate ArrivalImmediate(int64_t sequence) {
  return (sequence & 1) == 0 ? ChannelImmediate::kEvenExchange : ChannelImmediate::kOddExchange;
}

struct Peer {
  PeerHandle handle = 0;
  RemoteMemory memory;          // its slots and announcement rings
  std::byte* mapped = nullptr;  // the same, where loads and stores reach it; else null
  RemoteMemory notices;         // its notice boards
  uint32_t first_immediate = 0;
  uint64_t incarnation = 0;
};

struct PeerTable {
  int32_t rank = 0;
  std::vector<Peer> peers;          // by rank; this rank's own entry has only `mapped` and `first_immediate`
  RegisteredMemory own_memory;      // slots and announcement rings
  RegisteredMemory notice_memory;   // notice boards of all channels, in host memory
  RegisteredMemory staging_memory;  // messages on their way to peers that are not mapped; empty if all are
  uint64_t own_incarnation = 0;
  bool one_process = true;  // every rank lives in this process

  uint32_t Immediate(int32_t rank, int32_t channel, ChannelImmediate which) const {
    return peers[rank].first_immediate + channel * kImmediatesPerChannel + static_cast<uint32_t>(which);
  }
  // The rank that an error of the group's requests names, or none.
  std::optional<int32_t> RankNamedBy(const Error& error, const DomainGroup& group) const {
    for (size_t i = 0; i < peers.size() && !error.peer.empty(); ++i) {
      const bool takes_part = peers[i].incarnation != 0;
      if (takes_part && static_cast<int32_t>(i) != rank && group.PeerLabel(peers[i].handle) == error.peer) return i;
    }
    return {};
  }
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_PEER_TABLE_H_
