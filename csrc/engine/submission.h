// Submission: the pooled object behind a Transfer: its operation, its result, and who wants to hear of it.
#ifndef JAX_FABRIC_ENGINE_SUBMISSION_H_
#define JAX_FABRIC_ENGINE_SUBMISSION_H_

#include <atomic>
#include <cstdint>

#include "csrc/base/executor.h"
#include "csrc/engine/group_driver.h"
#include "csrc/engine/paged_operation.h"
#include "csrc/engine/requests.h"
#include "csrc/engine/send_operation.h"
#include "csrc/engine/sharded_operation.h"

namespace jax_fabric {

class SubmissionPool;
class MessagePool;

class Submission final : public OperationOwner {
 public:
  // One of these is used at a time.
  ShardedOperation sharded;
  PagedOperation paged;
  SendOperation send;

  // By the pool.
  void Init(SubmissionPool* pool, uint32_t index, GroupDriver* driver, Executor* executor);
  uint32_t index() const { return index_; }
  // A fresh submission has one reference, its submitter's.
  void Renew() { references_.store(1, std::memory_order_relaxed); }  // handed on by the queue's release

  // Hands the operation to the worker. Afterwards the submitter's reference is all that it may use.
  void Submit(Operation* operation, RequestOptions options);
  // A message slot to give back at the end.
  void SetMessageSlot(MessagePool* pool, uint32_t slot) {
    message_pool_ = pool;
    message_slot_ = slot;
  }

  void Reference() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Unreference();

  bool done() const { return done_.load(std::memory_order_seq_cst); }        // partner: Publish
  bool drained() const { return drained_.load(std::memory_order_acquire); }  // partner: OnSettled
  const Status& result() const { return result_; }                           // once done
  GroupDriver& driver() const { return *driver_; }
  void Cancel();

  void OnSettled(const Error* error, Settlement settlement) override;

 private:
  struct CancelRequest final : DriverRequest {
    void Start(GroupDriver& driver) override;
    Submission* submission = nullptr;
  };

  void Publish(const Error* error);

  SubmissionPool* pool_ = nullptr;
  uint32_t index_ = 0;
  GroupDriver* driver_ = nullptr;
  Executor* executor_ = nullptr;
  // Decrements release, the last one acquires: whoever recycles sees everybody's last use.
  std::atomic<uint32_t> references_{0};

  Operation* operation_ = nullptr;
  RequestOptions options_;
  MessagePool* message_pool_ = nullptr;
  uint32_t message_slot_ = 0;
  bool active_ = false;  // worker only: the driver has the operation
  Status result_;
  std::atomic<bool> done_{false};
  std::atomic<bool> drained_{false};
  std::atomic<bool> cancelling_{false};  // relaxed: only decides who queues cancel_
  CancelRequest cancel_;
  Task notify_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_SUBMISSION_H_
