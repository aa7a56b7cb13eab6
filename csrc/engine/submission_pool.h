#ifndef JAX_FABRIC_ENGINE_SUBMISSION_POOL_H_
#define JAX_FABRIC_ENGINE_SUBMISSION_POOL_H_

#include <cstdint>
#include <mutex>

#include "csrc/base/clock.h"
#include "csrc/base/executor.h"
#include "csrc/base/index_stack.h"
#include "csrc/base/stable_table.h"
#include "csrc/base/status.h"
#include "csrc/engine/group_driver.h"
#include "csrc/engine/submission.h"

namespace jax_fabric {

// The requests of a group that exist at once. This bound is also the bound of the queue to the worker.
class SubmissionPool {
 public:
  SubmissionPool(GroupDriver& driver, Executor& executor, uint32_t max_requests);

  // Waits for one to come back where all are in use, if the options let it and never on a worker; then
  // kResourceExhausted.
  Result<Submission*> Take(const RequestOptions& options);
  void Return(Submission* submission);

 private:
  Submission* TryTake();

  GroupDriver& driver_;
  Executor& executor_;
  const uint32_t max_requests_;
  IndexStack free_;
  std::mutex mutex_;  // while the pool grows
  uint32_t size_ = 0;
  StableTable<Submission, 64, 4096> submissions_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_SUBMISSION_POOL_H_
