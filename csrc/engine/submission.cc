#include "csrc/engine/submission.h"

#include <utility>

#include "csrc/engine/message_pool.h"
#include "csrc/engine/submission_pool.h"
#include "csrc/engine/transfer.h"

namespace jax_fabric {

void Submission::Init(SubmissionPool* pool, uint32_t index, GroupDriver* driver, Executor* executor) {
  pool_ = pool;
  index_ = index;
  driver_ = driver;
  executor_ = executor;
  cancel_.submission = this;
  notify_.context = this;
  notify_.run = [](void* context) {
    auto* self = static_cast<Submission*>(context);
    self->options_.on_done(self->result_);
    self->Unreference();
  };
}

void Submission::Submit(Operation* operation, RequestOptions options) {
  operation_ = operation;
  options_ = std::move(options);
  result_ = {};
  // All relaxed: the queue's release hands them to the worker, and nobody else knows this object yet.
  done_.store(false, std::memory_order_relaxed);
  drained_.store(false, std::memory_order_relaxed);
  cancelling_.store(false, std::memory_order_relaxed);
  active_ = true;
  Reference();  // the driver's, until the last settlement
  operation->Prepare(this, options_.deadline, options_.grant);
  driver_->Submit(operation);
}

void Submission::OnSettled(const Error* error, Settlement settlement) {
  if (settlement != Settlement::kReported) {
    active_ = false;
    if (message_pool_ != nullptr) std::exchange(message_pool_, nullptr)->ReturnSlot(message_slot_);
    options_.keep_alive.reset();
    drained_.store(true, std::memory_order_release);
  }
  if (settlement != Settlement::kDrained) Publish(error);
  if (settlement != Settlement::kReported) Unreference();
}

void Submission::Publish(const Error* error) {
  if (error != nullptr) result_ = tl::unexpected<Error>(*error);
  const bool notify = static_cast<bool>(options_.on_done);
  if (notify) Reference();
  options_.on_worker(error);
  // Sequentially consistent as the hub demands; also releases result_.
  done_.store(true, std::memory_order_seq_cst);
  driver_->hub().Notify();
  if (notify) executor_->Submit(&notify_);
}

void Submission::Cancel() {
  if (done() || cancelling_.exchange(true, std::memory_order_relaxed)) return;
  Reference();  // the cancel request's
  driver_->Submit(&cancel_);
}

void Submission::CancelRequest::Start(GroupDriver& driver) {
  // The operation was queued first: where it is not active any more it has ended by itself.
  if (submission->active_) driver.BeginCancel(*submission->operation_);
  submission->Unreference();
}

void Submission::Unreference() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  options_.on_done = nullptr;
  pool_->Return(this);
}

Transfer::Transfer(const Transfer& other) : submission_(other.submission_) {
  if (submission_ != nullptr) submission_->Reference();
}

Transfer::~Transfer() {
  if (submission_ != nullptr) submission_->Unreference();
}

bool Transfer::done() const { return submission_ == nullptr || submission_->done(); }

bool Transfer::drained() const { return submission_ == nullptr || submission_->drained(); }

void Transfer::Cancel() {
  if (submission_ != nullptr) submission_->Cancel();
}

Status Transfer::Wait(Deadline deadline) const {
  if (submission_ == nullptr) return {};
  if (!submission_->done()) {
    if (Waker::OnWorker()) {
      return MakeError(ErrorCode::kFailedPrecondition,
                       "Transfer::Wait on a worker thread, which would have to do what is waited for; use a callback");
    }
    if (!submission_->driver().hub().Wait(deadline, [this] { return submission_->done(); })) {
      return MakeError(ErrorCode::kDeadlineExceeded, "group '{}': the transfer has not ended; it goes on",
                       submission_->driver().name());
    }
  }
  return submission_->result();
}

}  // namespace jax_fabric
