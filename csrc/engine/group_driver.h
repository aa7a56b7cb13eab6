// GroupDriver: the worker's half of a DomainGroup. Owns the domains and is their driving thread.
//
// Never blocks. Anything that a domain has no room for waits in the lane of its peer and NIC, so that a peer that
// does not take its data delays nobody else.
#ifndef JAX_FABRIC_ENGINE_GROUP_DRIVER_H_
#define JAX_FABRIC_ENGINE_GROUP_DRIVER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/mpsc_queue.h"
#include "csrc/engine/abandoned_operations.h"
#include "csrc/engine/deadline_list.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/driver_request.h"
#include "csrc/engine/imm_counter.h"
#include "csrc/engine/operation.h"
#include "csrc/engine/peer.h"
#include "csrc/engine/poller_set.h"
#include "csrc/engine/wait_hub.h"
#include "csrc/engine/waker.h"

namespace jax_fabric {

class GrantProtocol;

// Sees the messages that come.
class ReceiveHandler {
 public:
  // On the worker. `peer` is null where the domain cannot tell.
  virtual void OnReceive(const Completion& completion, const Peer* peer) = 0;

 protected:
  ~ReceiveHandler() = default;
};

class GroupDriver {
 public:
  // `waker` wakes the worker; `hub` hears of everything that a thread may wait for. Both outlive the driver.
  GroupDriver(std::string name, std::vector<std::unique_ptr<Domain>> domains, const Clock& clock, Waker& waker,
              WaitHub& hub);
  ~GroupDriver();

  // --- any thread
  void Submit(DriverRequest* request);
  // False from RequestClose on: then public functions refuse instead of submitting. What has passed this check already
  // is cancelled.
  bool accepting() const { return accepting_.load(std::memory_order_acquire); }
  const std::string& name() const { return name_; }
  std::span<const std::unique_ptr<Domain>> domains() const { return domains_; }
  const Clock& clock() const { return clock_; }
  ImmCounter& imm_counter() { return imm_counter_; }
  WaitHub& hub() { return hub_; }
  AbandonedOperations& abandoned() { return abandoned_; }
  // What the worker looks at in each step. Whoever adds something calls WakeWorker.
  PollerSet& pollers() { return pollers_; }
  void WakeWorker() { waker_.WakeIfSleeping(); }
  // Everything ends with kCancelled, at once or when what is in flight has completed, at the latest at `deadline`.
  void RequestClose(Deadline deadline);
  // Closed, and nothing is in flight any more.
  bool quiescent() const { return quiescent_.load(std::memory_order_seq_cst); }  // partner: PublishQuiescence

  // --- worker only
  // Returns whether anything happened.
  bool Step(int64_t now_ns);
  // Nothing to do until a request, a completion or `earliest_deadline_ns` comes.
  bool CanSleep() const;
  int64_t earliest_deadline_ns() const;
  // See Domain::ArmWait.
  bool ArmWait();
  void SetReceiveHandler(ReceiveHandler* handler) { on_receive_ = handler; }
  // Before the first step.
  void SetGrants(GrantProtocol* grants) { grants_ = grants; }

  // --- worker only: what requests do when they start
  void Begin(Operation& operation);
  void BeginCancel(Operation& operation, std::string_view cause = "cancelled");
  void Connect(Peer& peer);
  void Remove(Peer& peer);
  void Close(Deadline deadline);

  // When the worker will never step this driver again: ends what is left. Requests that are still submitted end at
  // once, on the submitting thread.
  void Detach();

 private:
  bool TakeRequests();
  bool ProgressLanes();
  bool PollCompletions();
  bool PollConnecting();
  bool ExpireDeadlines(int64_t now_ns);

  void HandleCompletion(uint32_t nic, const Completion& completion);
  void HandlePost(uint32_t nic, const Completion& completion);
  PostResult TryPost(Stream& stream);
  void PostFirst(Stream& stream);
  bool PostMore(Lane& lane);
  void Queue(Stream& stream);
  void Unqueue(Stream& stream);
  void DropStream(Stream& stream, ErrorCode code, std::string_view cause);
  void Withdraw(Operation& operation);
  void SettleIfFinished(Operation& operation);
  void Expire(Operation& operation);
  void FailUnlessGranted(Operation& operation);
  void FailPeer(Peer& peer, PeerState state, ErrorCode code, std::string cause);
  void PublishQuiescence();
  void DrainDetached();
  Peer* PeerById(uint32_t nic, PeerId id) const;

  const std::string name_;
  AbandonedOperations abandoned_;  // before the domains, so that it outlives them
  const std::vector<std::unique_ptr<Domain>> domains_;
  const Clock& clock_;
  Waker& waker_;
  WaitHub& hub_;
  ImmCounter imm_counter_;
  MpscQueue<DriverRequest> queue_;
  PollerSet pollers_;

  // Worker only.
  DriverRequest* taken_ = nullptr;  // from the queue, not started yet
  Lane* first_waiting_ = nullptr;
  Lane* last_waiting_ = nullptr;
  Peer* connecting_ = nullptr;
  DeadlineList deadlines_;
  uint64_t operations_ = 0;  // begun and not settled for good
  std::vector<Peer*> peers_;
  std::array<std::vector<Peer*>, kMaxNics> peers_by_id_;
  ReceiveHandler* on_receive_ = nullptr;
  GrantProtocol* grants_ = nullptr;
  bool closed_ = false;
  Deadline close_deadline_;

  std::atomic<bool> accepting_{true};
  std::atomic<bool> quiescent_{false};
  // Set by Detach, read by Submit after its push, both sequentially consistent: either the submitter sees it, or
  // Detach sees what was pushed.
  std::atomic<bool> detached_{false};
  // Somebody does the worker's part, once detached: see DrainDetached.
  std::atomic<bool> draining_{false};

  struct CloseRequest final : DriverRequest {
    void Start(GroupDriver& driver) override { driver.Close(deadline); }
    Deadline deadline;
  } close_request_;
  std::atomic<bool> close_requested_{false};  // relaxed: only decides who queues close_request_
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_GROUP_DRIVER_H_
