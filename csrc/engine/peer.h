// A peer and its lanes: one lane for each NIC, where posts wait that the domain has no room for.
#ifndef JAX_FABRIC_ENGINE_PEER_H_
#define JAX_FABRIC_ENGINE_PEER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/driver_request.h"
#include "csrc/engine/memory.h"
#include "csrc/engine/peer_address.h"
#include "csrc/engine/requests.h"

namespace jax_fabric {

class Operation;
struct LocalPieces;
struct Peer;
struct Lane;

// The posts of one operation to one peer over one NIC: `count` of them, made one after the other.
struct Stream {
  Operation* operation = nullptr;
  Lane* lane = nullptr;
  uint64_t count = 0;
  uint64_t next_index = 0;  // of the post that comes next
  uint64_t in_flight = 0;
  // Neighbours in the lane's queue.
  Stream* previous = nullptr;
  Stream* next = nullptr;
  bool queued = false;

  // What operations make posts from; which fields mean something is theirs to say.
  const std::byte* source = nullptr;
  uint64_t local_key = 0;
  uint64_t remote_address = 0;
  uint64_t remote_key = 0;
  // Where the memory is registered in pieces: these, and how far behind the first piece's first byte `source` and
  // `remote_address` are. Kept by the operation.
  const LocalPieces* source_pieces = nullptr;
  uint64_t source_offset = 0;
  const RemoteMemory::Pieces* target_pieces = nullptr;
  uint64_t target_offset = 0;
  uint64_t length = 0;      // of the whole transfer
  uint64_t part_count = 1;  // of the whole transfer
  uint64_t first_part = 0;  // this stream makes parts first_part, first_part + part_step, ...
  uint64_t part_step = 1;
  std::optional<uint32_t> immediate;
};

// Where memory is registered in pieces, at both ends; kept for as long as something may be posted from it.
struct TransferPieces {
  std::shared_ptr<const LocalPieces> source;
  uint64_t source_offset = 0;  // see Stream
  std::shared_ptr<const RemoteMemory::Pieces> target;
  uint64_t target_offset = 0;

  bool empty() const { return source == nullptr && target == nullptr; }
  void Set(Stream& stream) const {
    stream.source_pieces = source.get();
    stream.source_offset = source_offset;
    stream.target_pieces = target.get();
    stream.target_offset = target_offset;
  }
};

// Worker only.
struct Lane {
  Peer* peer = nullptr;
  Domain* domain = nullptr;
  uint32_t nic = 0;
  PeerId id = Completion::kUnknownPeer;
  uint64_t in_flight = 0;
  bool blocked = false;  // the domain said kAgain and has taken nothing since
  Stream* head = nullptr;
  Stream* tail = nullptr;
  // Neighbours among the driver's lanes that have something queued.
  Lane* previous = nullptr;
  Lane* next = nullptr;
  bool waiting = false;

  void Append(Stream* stream);
  void Remove(Stream* stream);
};

struct Peer {
  // --- constant once the handle has been handed out
  PeerHandle handle = 0;
  PeerAddress address;
  Bytes address_bytes;      // what it was parsed from
  std::string label;        // "peer 3 'decoder-1'"
  uint64_t part_limit = 0;  // see shard_plan.h
  // Sequence number of the next message to it: other ones than those of an earlier peer with the same address.
  std::atomic<uint64_t> next_message{0};

  // Stored by the worker alone, with release: `cause` and `ids` are written before. Acquire everywhere else.
  std::atomic<PeerState> state{PeerState::kConnecting};
  Error cause;  // of kFailed and kRemoved
  std::array<std::atomic<PeerId>, kMaxNics> ids{};

  // --- worker only
  std::array<Lane, kMaxNics> lanes;
  Peer* next_connecting = nullptr;

  struct ConnectRequest final : DriverRequest {
    void Start(GroupDriver& driver) override;
    Peer* peer = nullptr;
  } connect;
  struct RemoveRequest final : DriverRequest {
    void Start(GroupDriver& driver) override;
    Peer* peer = nullptr;
  } remove;
  std::atomic<bool> remove_requested{false};  // relaxed: only decides who queues `remove`
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_PEER_H_
