// What users ask of a DomainGroup. All sizes and offsets are bytes in 64 bits; everything is checked when it is
// submitted, so a request that was accepted fails only for what happens on the way.
#ifndef JAX_FABRIC_ENGINE_REQUESTS_H_
#define JAX_FABRIC_ENGINE_REQUESTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/memory.h"
#include "csrc/engine/worker_callback.h"
#include "csrc/engine/write_grant.h"

namespace jax_fabric {

// A peer group on another engine (or this one), as this group numbers it.
using PeerHandle = uint32_t;

struct RequestOptions {
  // The request has ended by then, whatever happens: with kDeadlineExceeded if need be.
  Deadline deadline;
  // False: kResourceExhausted at once where too much is under way, in place of waiting for room until the deadline.
  bool wait_for_room = true;
  // On the worker: must not block.
  WorkerCallback on_worker = {};
  // Dropped once nothing of the request is in flight any more, on the worker, before anybody hears of the end (unless
  // the deadline passed before).
  std::shared_ptr<const void> keep_alive = {};
  // On the engine's callback thread; after on_worker.
  std::function<void(const Status&)> on_done = {};
  // The writes end with kCancelled as soon as the target's owner takes this back. Every write has to go to that peer
  // and to bring the grant's immediate.
  std::optional<WriteGrant> grant = {};
};

// One contiguous write, spread over the NICs. DomainGroup::WriteImmediates says how many immediates it brings.
struct SingleWrite {
  PeerHandle peer = 0;
  RegisteredMemory source;
  uint64_t source_offset = 0;
  const RemoteMemory* target = nullptr;
  uint64_t target_offset = 0;
  uint64_t length = 0;
  uint64_t max_length = 0;  // declared to the receiver; 0: `length` itself
  std::optional<uint32_t> immediate = {};
};

// Page i lies at offset + indices[i] * stride.
struct PageSet {
  std::span<const uint64_t> indices;
  uint64_t stride = 0;
  uint64_t offset = 0;
};

// Source page i goes to target page i; pages spread over the NICs. Each page brings one immediate.
struct PagedWrites {
  PeerHandle peer = 0;
  uint64_t page_length = 0;
  RegisteredMemory source;
  PageSet source_pages;
  const RemoteMemory* target = nullptr;
  PageSet target_pages;
  std::optional<uint32_t> immediate = {};
};

// An immediate and nothing else.
struct BarrierTarget {
  PeerHandle peer = 0;
  const RemoteMemory* target = nullptr;  // any memory of the peer's: even an empty write names one
  uint32_t immediate = 0;
};

struct ReceiveOptions {
  uint32_t buffers = 64;
  uint64_t max_bytes = 4096;  // of one message
  // On the engine's callback thread; `message` is valid during the call.
  std::function<void(PeerHandle peer, ByteView message)> on_message = {};
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_REQUESTS_H_
