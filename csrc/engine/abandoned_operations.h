// Operations that are in flight and that nobody has a handle of any more.
#ifndef JAX_FABRIC_ENGINE_ABANDONED_OPERATIONS_H_
#define JAX_FABRIC_ENGINE_ABANDONED_OPERATIONS_H_

#include <mutex>
#include <unordered_set>

namespace jax_fabric {

class AbandonedOperation {
 public:
  virtual ~AbandonedOperation() = default;
};

// They free themselves when they have completed. Those that a domain never completes, since it is gone, end with this:
// it outlives the domains.
class AbandonedOperations {
 public:
  ~AbandonedOperations() {
    for (AbandonedOperation* operation : operations_) delete operation;
  }

  // Any thread.
  void Add(AbandonedOperation* operation) {
    std::lock_guard lock(mutex_);
    operations_.insert(operation);
  }
  void Remove(AbandonedOperation* operation) {
    std::lock_guard lock(mutex_);
    operations_.erase(operation);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<AbandonedOperation*> operations_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_ABANDONED_OPERATIONS_H_
