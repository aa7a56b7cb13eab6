// Operation: what libfabric works on and gives back in a completion. The pool allocates once.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_OPERATION_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_OPERATION_H_

#include <rdma/fabric.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/nic/memory_table.h"

namespace jax_fabric::efa {

struct Remote;
struct MessageBuffer;

struct Operation {
  enum class Kind : uint8_t { kFree, kWrite, kSend, kControl, kReceive };

  fi_context2 provider = {};  // first: the provider hands its address back, and writes into it meanwhile
  Kind kind = Kind::kFree;
  bool reported = false;  // its user has been told already: the peer was lost or removed
  PeerId peer = Completion::kUnknownPeer;
  uint64_t context = 0;
  uint64_t length = 0;
  Remote* remote = nullptr;
  nic::HeldRegion* region = nullptr;
  MessageBuffer* buffer = nullptr;
  // Of a write whose immediate goes by itself when the payload has arrived (EfaDomain::splits_).
  bool immediate_follows = false;
  uint32_t immediate = 0;
  uint64_t remote_address = 0;
  uint64_t provider_key = 0;

  static Operation* Of(void* context) { return static_cast<Operation*>(context); }
};
static_assert(offsetof(Operation, provider) == 0);

class OperationPool {
 public:
  explicit OperationPool(size_t size) : all_(size) {
    free_.reserve(size);
    for (Operation& each : all_) free_.push_back(&each);
  }
  // Null when all are in use.
  Operation* Take(Operation::Kind kind) {
    if (free_.empty()) return nullptr;
    Operation* operation = free_.back();
    free_.pop_back();
    operation->kind = kind;
    operation->reported = false;
    operation->immediate_follows = false;
    return operation;
  }
  void Return(Operation* operation) {
    operation->kind = Operation::Kind::kFree;
    operation->region = nullptr;
    operation->buffer = nullptr;
    free_.push_back(operation);
  }
  std::vector<Operation>& all() { return all_; }
  size_t in_use() const { return all_.size() - free_.size(); }

 private:
  std::vector<Operation> all_;
  std::vector<Operation*> free_;
};

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_OPERATION_H_
