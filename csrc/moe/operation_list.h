// Operations that wait for their turn, in the order they came. There is room for more than a program usually has in
// flight, so that parking does not allocate.
#ifndef JAX_FABRIC_MOE_OPERATION_LIST_H_
#define JAX_FABRIC_MOE_OPERATION_LIST_H_

#include <vector>

#include "csrc/moe/operation.h"

namespace jax_fabric::moe {

class OperationList {
 public:
  OperationList() { operations_.reserve(64); }
  bool empty() const { return operations_.empty(); }
  // The one that waits longest.
  ExchangeOperation* front() const { return operations_.front(); }
  void Add(ExchangeOperation* operation) { operations_.push_back(operation); }

  // Takes out the first one that `matches`, or returns null.
  template <typename Predicate>
  ExchangeOperation* Take(Predicate matches) {
    for (auto it = operations_.begin(); it != operations_.end(); ++it) {
      ExchangeOperation* operation = *it;
      if (!matches(*operation)) continue;
      operations_.erase(it);
      return operation;
    }
    return nullptr;
  }
  ExchangeOperation* TakeFront() {
    return Take([](const ExchangeOperation&) { return true; });
  }

 private:
  std::vector<ExchangeOperation*> operations_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_OPERATION_LIST_H_
