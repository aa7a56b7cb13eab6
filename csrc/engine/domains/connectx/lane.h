// Lane: one queue pair of a connection, and what is posted to it.
//
// The device works on a queue pair's requests in their order and tells of those that were asked to tell, and of every
// one that fails. So whatever is in front of a completion has been successful. After a failure the device works on
// nothing more, and everything behind it comes back.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_LANE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_LANE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/connectx/queue_pair.h"
#include "csrc/engine/domains/nic/memory_table.h"

namespace jax_fabric::connectx {

struct Connection;

struct Posted {
  CompletionKind kind = CompletionKind::kWrite;
  bool marker = false;   // posted by Close, for nobody
  bool chained = false;  // behind another one of the same request
  uint64_t context = 0;
  uint64_t length = 0;
  nic::HeldRegion* region = nullptr;
  uint32_t buffer = 0;  // of a message
};

class Lane {
 public:
  // `index`: what its work requests carry. `depth`: of the queue pair, one of which is for Close.
  Lane(Connection& connection, uint32_t index, QueuePair pair, uint32_t depth);

  Connection& connection() const { return connection_; }
  QueuePair& pair() { return pair_; }
  uint32_t index() const { return index_; }
  uint32_t in_flight() const { return tail_ - head_; }
  uint32_t room() const { return depth_ - 1 - in_flight(); }
  // Nothing more is posted to it: a request failed, or it is closing.
  bool broken() const { return broken_; }
  // The device has let go of everything.
  bool closed() const { return closed_; }
  ErrorCode code() const { return code_; }  // of what comes back, when broken
  const std::string& cause() const { return cause_; }

  // The id of the request that is posted next, and what it is.
  uint64_t NextId(uint32_t ahead) const;
  void Push(const Posted& posted) { ring_[tail_++ & mask_] = posted; }
  // The oldest one, when the device is done with it.
  Posted Pop() { return std::move(ring_[head_++ & mask_]); }
  // How many there are up to and including the one at this position; 0 when the device has told of it already.
  uint32_t CountTo(uint32_t position) const;

  // What is in flight comes back with that code and cause. A reason that it has already stays.
  void Break(ErrorCode code, std::string cause);
  // Ends what the device does, and posts a marker behind everything. Closed when the marker comes back.
  void Close();
  // The device forgets it. What is left in the ring has to be popped.
  void Destroy();
  void OnMarker() { closed_ = true; }

 private:
  Connection& connection_;
  const uint32_t index_;
  const uint32_t depth_;
  const uint32_t mask_;
  QueuePair pair_;
  std::vector<Posted> ring_;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
  bool broken_ = false;
  bool closing_ = false;
  bool closed_ = false;
  ErrorCode code_ = ErrorCode::kOk;
  std::string cause_;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_LANE_H_
