// ImmCounter: the immediates a group has received, counted per id.
//
// Ids are opaque and handed out in ranges. Counting is a table look-up on the worker: no allocation, no lock. An
// expectation is armed once and calls back when its count is in; what arrives before it is armed, or beyond its
// count, carries over to the next one. An expectation travels to the worker inside the id's own slot of the table
// (there is one at a time), so that it needs no allocation either.
#ifndef JAX_FABRIC_ENGINE_IMM_COUNTER_H_
#define JAX_FABRIC_ENGINE_IMM_COUNTER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "csrc/base/clock.h"
#include "csrc/base/stable_table.h"
#include "csrc/base/status.h"
#include "csrc/engine/deadline_list.h"
#include "csrc/engine/driver_request.h"
#include "csrc/engine/worker_callback.h"

namespace jax_fabric {

class ImmCounter {
 public:
  // `group_name` is for messages.
  explicit ImmCounter(std::string group_name);

  // --- any thread
  // The first of `count` consecutive ids; their counts are 0.
  Result<uint32_t> Allocate(uint32_t count);
  // The same range back, for other owners. The caller knows that no peer uses the ids any more: a late immediate
  // would count for the next owner.
  Status Release(uint32_t first, uint32_t count);
  // Reserves the id's slot for one expectation; the result goes to the worker's queue, where it arms itself. With
  // `losses_seen` it ends with kUnavailable once peer_losses() is another number.
  Result<DriverRequest*> PrepareExpectation(uint32_t immediate, uint32_t count, Deadline deadline,
                                            WorkerCallback callback, std::optional<uint64_t> losses_seen = {});
  // To cancel it in the same way; null when a cancellation is on its way already or the id is unknown.
  DriverRequest* PrepareCancellation(uint32_t immediate);
  // Acquire, partner: CountPeerLoss. Of the losses that are counted, the peers' states are visible.
  uint64_t peer_losses() const { return peer_losses_.load(std::memory_order_acquire); }

  bool IsOwned(uint32_t immediate) const { return Owned(immediate) != nullptr; }

  // --- worker only
  // PrepareExpectation and the arming in one.
  Status Expect(uint32_t immediate, uint32_t count, Deadline deadline, WorkerCallback callback,
                std::optional<uint64_t> losses_seen = {});
  void Count(uint32_t immediate, uint32_t times = 1);
  // Calls back with kDeadlineExceeded; returns how many.
  int Expire(int64_t now_ns);
  int64_t earliest_deadline_ns() const { return std::min(deadlines_.earliest_ns(), ended_by_loss_.earliest_ns()); }
  // After a peer's state has been stored.
  void CountPeerLoss();
  // Ends every armed expectation with kCancelled and every later one at once.
  void Close();

  // Ends an expectation with kCancelled and forgets what was not consumed: nothing more comes.
  void Abandon(uint32_t immediate);
  // Seen and not consumed by an expectation yet.
  uint64_t unconsumed(uint32_t immediate) const;
  // Ever, whoever owned the id. Any thread: all that it has heard of is counted.
  uint64_t seen(uint32_t immediate) const;
  // Immediates whose id nobody owns: from a stale or a broken peer.
  uint64_t strays() const { return strays_.load(std::memory_order_relaxed); }

 private:
  enum State : uint32_t {
    kFree,     // nobody owns the id
    kIdle,     // owned, nothing expected
    kClaimed,  // an expectation is on its way to the worker
    kArmed,    // the worker has it
  };
  struct Slot;
  struct ArmRequest final : DriverRequest {
    void Start(GroupDriver& driver) override;
    Slot* slot = nullptr;
  };
  struct CancelRequest final : DriverRequest {
    void Start(GroupDriver& driver) override;
    Slot* slot = nullptr;
  };
  struct Slot : DeadlineNode {
    // kIdle -> kClaimed by the submitter (acquire), kArmed -> kIdle by the worker (release): each such pair hands the
    // plain fields from one expectation's submitter to the next one's.
    std::atomic<uint32_t> state{kFree};
    // Counts owners; release in Allocate, acquire in the worker, which forgets the counts of the owner before.
    std::atomic<uint32_t> generation{0};
    // A CancelRequest is queued. Set by whoever queues it, cleared by the worker before it looks at `state`.
    std::atomic<bool> cancelling{false};
    uint32_t id = 0;
    uint32_t expected = 0;
    Deadline deadline;
    WorkerCallback callback;
    std::optional<uint64_t> losses_seen;
    std::atomic<uint64_t> seen{0};    // relaxed: stored by the worker alone
    uint64_t unconsumed = 0;          // worker only
    uint32_t counted_generation = 0;  // worker only
    ImmCounter* counter = nullptr;
    ArmRequest arm;
    CancelRequest cancel;
  };

  Result<uint32_t> TakeRange(uint32_t count);
  Slot* Owned(uint32_t immediate) const;  // null when nobody owns the id
  void ForgetFormerOwner(Slot& slot);
  void Arm(Slot& slot);
  void Cancel(Slot& slot);
  void Finish(Slot& slot, const Error* error);
  void FinishCancelled(Slot& slot);
  void FinishAfterLoss(Slot& slot);

  const std::string group_name_;
  StableTable<Slot, 256, 4096> slots_;
  std::mutex mutex_;                            // of the ranges; never on the way of an immediate
  std::multimap<uint32_t, uint32_t> released_;  // length to first id
  uint32_t next_id_ = 1;
  DeadlineList deadlines_;      // worker only
  DeadlineList ended_by_loss_;  // worker only: those with `losses_seen`
  bool closed_ = false;         // worker only
  std::atomic<uint64_t> peer_losses_{0};
  std::atomic<uint64_t> strays_{0};  // relaxed: a statistic, nothing is ordered by it
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_IMM_COUNTER_H_
