#include "csrc/engine/submission_pool.h"

#include <algorithm>

namespace jax_fabric {
namespace {

constexpr uint32_t kGrowBy = 64;

}  // namespace

SubmissionPool::SubmissionPool(GroupDriver& driver, Executor& executor, uint32_t max_requests)
    : driver_(driver), executor_(executor), max_requests_(std::clamp(max_requests, 1u, IndexStack::kCapacity)) {}

Submission* SubmissionPool::TryTake() {
  std::optional<uint32_t> index = free_.Pop();
  if (!index.has_value()) {
    std::lock_guard lock(mutex_);
    const uint32_t grown = std::min(max_requests_, size_ + kGrowBy);
    submissions_.Reserve(grown);
    free_.Reserve(grown);
    for (; size_ < grown; ++size_) {
      submissions_.Find(size_)->Init(this, size_, &driver_, &executor_);
      free_.Push(size_);
    }
    index = free_.Pop();
  }
  if (!index.has_value()) return nullptr;
  Submission* submission = submissions_.Find(*index);
  submission->Renew();
  return submission;
}

Result<Submission*> SubmissionPool::Take(const RequestOptions& options) {
  Submission* submission = TryTake();
  if (submission != nullptr) return submission;
  const bool may_wait = options.wait_for_room && !Waker::OnWorker();
  const bool found = may_wait && driver_.hub().Wait(options.deadline, [&] {
    submission = TryTake();
    return submission != nullptr;
  });
  if (found) return submission;
  return MakeError(ErrorCode::kResourceExhausted,
                   "group '{}': {} requests are under way and none ended before the deadline; drop Transfer handles "
                   "that are done with, or raise GroupOptions::max_requests",
                   driver_.name(), max_requests_);
}

void SubmissionPool::Return(Submission* submission) {
  free_.Push(submission->index());
  driver_.hub().Notify();
}

}  // namespace jax_fabric
