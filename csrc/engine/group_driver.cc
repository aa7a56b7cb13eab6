#include "csrc/engine/group_driver.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "csrc/engine/grant_protocol.h"

namespace jax_fabric {
namespace {

// Bounds on one step, so that no part of the loop keeps the others waiting.
constexpr int kRequestsPerStep = 64;
constexpr int kPostsPerLane = 32;
constexpr int kPollRounds = 4;
constexpr size_t kCompletionsPerPoll = 64;

}  // namespace

GroupDriver::GroupDriver(std::string name, std::vector<std::unique_ptr<Domain>> domains, const Clock& clock,
                         Waker& waker, WaitHub& hub)
    : name_(std::move(name)),
      domains_(std::move(domains)),
      clock_(clock),
      waker_(waker),
      hub_(hub),
      imm_counter_(name_) {}

GroupDriver::~GroupDriver() = default;

void GroupDriver::Submit(DriverRequest* request) {
  queue_.Push(request);
  waker_.WakeIfSleeping();
  if (detached_.load(std::memory_order_seq_cst)) DrainDetached();
}

void GroupDriver::RequestClose(Deadline deadline) {
  accepting_.store(false, std::memory_order_release);
  if (close_requested_.exchange(true, std::memory_order_relaxed)) return;
  close_request_.deadline = deadline;
  Submit(&close_request_);
}

void GroupDriver::DrainDetached() {
  // Whoever finds `draining_` set leaves its request to the one that has set it, who looks at the queue again after
  // clearing it. All sequentially consistent: what was pushed before a failed exchange is seen by that look.
  // Callbacks that submit come here, too, and return at once.
  while (!queue_.Empty() && !draining_.exchange(true, std::memory_order_seq_cst)) {
    while (TakeRequests()) {
    }
    draining_.store(false, std::memory_order_seq_cst);
  }
}

void GroupDriver::Detach() {
  const Waker::WorkerScope scope;
  draining_.store(true, std::memory_order_seq_cst);
  detached_.store(true, std::memory_order_seq_cst);
  closed_ = true;
  imm_counter_.Close();
  grants_->EndAll();
  deadlines_.ExpireAll([this](DeadlineNode* node) {
    Operation& operation = *static_cast<Operation*>(node);
    operation.Fail(ErrorCode::kCancelled, "the engine is closed");
    Expire(operation);
  });
  while (TakeRequests()) {
  }
  draining_.store(false, std::memory_order_seq_cst);
  DrainDetached();
}

bool GroupDriver::Step(int64_t now_ns) {
  // First: what they submit goes in this step.
  bool busy = pollers_.Poll();
  busy |= TakeRequests();
  busy |= ProgressLanes();
  busy |= PollCompletions();
  if (connecting_ != nullptr) busy |= PollConnecting();
  busy |= ExpireDeadlines(now_ns);
  busy |= grants_->Step(now_ns);
  if (closed_) PublishQuiescence();
  return busy;
}

bool GroupDriver::TakeRequests() {
  bool any = false;
  for (int i = 0; i < kRequestsPerStep; ++i) {
    if (taken_ == nullptr) taken_ = queue_.TakeAll();
    if (taken_ == nullptr) break;
    DriverRequest* request = taken_;
    taken_ = request->next;  // Start may queue the request again
    request->Start(*this);
    any = true;
  }
  return any;
}

void GroupDriver::Begin(Operation& operation) {
  operation.Rewind();
  ++operations_;
  if (closed_) {
    operation.Fail(ErrorCode::kCancelled, "the engine is closed");
  } else if (operation.grant_) {
    FailUnlessGranted(operation);
  }
  if (!operation.failed()) {
    deadlines_.Insert(&operation, operation.deadline_.at_ns);
    for (Stream& stream : operation.streams()) {
      if (stream.count > 0) PostFirst(stream);
      if (operation.failed() && operation.on_failure_ == Operation::OnFailure::kWithdraw) break;
    }
  }
  SettleIfFinished(operation);
}

void GroupDriver::FailUnlessGranted(Operation& operation) {
  const Peer& peer = *operation.streams().front().lane->peer;
  const PeerState state = peer.state.load(std::memory_order_relaxed);         // this thread stores it
  if (state != PeerState::kConnecting && state != PeerState::kReady) return;  // posting fails for that
  operation.admitted_ = grants_->Admit(operation);
  if (operation.admitted_) return;
  operation.Fail(ErrorCode::kCancelled, fmt::format("{} took grant {} back", peer.label, operation.grant_->id));
}

void GroupDriver::PostFirst(Stream& stream) {
  // Behind a post that the domain refused this one would be refused as well, or overtake it.
  if (!stream.lane->blocked && TryPost(stream) == PostResult::kRejected) return;
  if (stream.next_index < stream.count) Queue(stream);
}

PostResult GroupDriver::TryPost(Stream& stream) {
  Lane& lane = *stream.lane;
  Operation& operation = *stream.operation;
  const PeerState state = lane.peer->state.load(std::memory_order_relaxed);  // this thread stores it
  if (state == PeerState::kConnecting) return PostResult::kAgain;
  if (state != PeerState::kReady) {
    DropStream(stream, ErrorCode::kUnavailable, lane.peer->cause.message);
    return PostResult::kRejected;
  }
  // One peer may take half of the domain's depth: what it does not take in leaves room for the others.
  const uint32_t depth = lane.domain->limits().max_outstanding;
  const uint32_t share = depth > 1 ? depth - depth / 2 : std::numeric_limits<uint32_t>::max();
  if (lane.in_flight >= share) return PostResult::kAgain;
  uint32_t posted = 0;
  const PostResult result = operation.Post(*lane.domain, stream, share - static_cast<uint32_t>(lane.in_flight), posted);
  if (result == PostResult::kPosted) {
    stream.next_index += posted;
    stream.in_flight += posted;
    operation.in_flight_ += posted;
    lane.in_flight += posted;
    lane.blocked = false;
  } else if (result == PostResult::kAgain) {
    lane.blocked = true;
  } else {
    // The domain may know of a peer's end before its kPeerFault has been polled.
    const bool lost = lane.domain->peer_state(lane.id) != PeerState::kReady;
    DropStream(stream, lost ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument, lane.domain->last_error());
  }
  return result;
}

void GroupDriver::DropStream(Stream& stream, ErrorCode code, std::string_view cause) {
  Operation& operation = *stream.operation;
  if (!operation.failed()) {
    const Lane& lane = *stream.lane;
    operation.Fail(code, fmt::format("{} over {}: {}", lane.peer->label, lane.domain->name(), cause), &lane);
  }
  if (stream.queued) Unqueue(stream);
  if (operation.on_failure_ == Operation::OnFailure::kWithdraw) Withdraw(operation);
}

void GroupDriver::Queue(Stream& stream) {
  Lane& lane = *stream.lane;
  lane.Append(&stream);
  ++stream.operation->queued_streams_;
  if (lane.waiting) return;
  lane.waiting = true;
  lane.previous = last_waiting_;
  lane.next = nullptr;
  (last_waiting_ == nullptr ? first_waiting_ : last_waiting_->next) = &lane;
  last_waiting_ = &lane;
}

void GroupDriver::Unqueue(Stream& stream) {
  Lane& lane = *stream.lane;
  lane.Remove(&stream);
  --stream.operation->queued_streams_;
  if (lane.head != nullptr) return;
  lane.waiting = false;
  lane.blocked = false;
  (lane.previous == nullptr ? first_waiting_ : lane.previous->next) = lane.next;
  (lane.next == nullptr ? last_waiting_ : lane.next->previous) = lane.previous;
  lane.previous = lane.next = nullptr;
}

void GroupDriver::Withdraw(Operation& operation) {
  for (Stream& stream : operation.streams()) {
    if (stream.queued) Unqueue(stream);
  }
}

bool GroupDriver::ProgressLanes() {
  bool any = false;
  // Settling an operation may take other lanes out of the list, so the walk goes by count and from the front: each
  // lane visited moves to the back.
  size_t count = 0;
  for (Lane* lane = first_waiting_; lane != nullptr; lane = lane->next) ++count;
  for (; count > 0 && first_waiting_ != nullptr; --count) {
    Lane& lane = *first_waiting_;
    if (lane.next != nullptr) {
      first_waiting_ = lane.next;
      first_waiting_->previous = nullptr;
      lane.previous = last_waiting_;
      lane.next = nullptr;
      last_waiting_->next = &lane;
      last_waiting_ = &lane;
    }
    any |= PostMore(lane);
  }
  return any;
}

bool GroupDriver::PostMore(Lane& lane) {
  Stream& stream = *lane.head;
  Operation& operation = *stream.operation;
  bool any = false;
  for (int i = 0; i < kPostsPerLane; ++i) {
    const PostResult result = TryPost(stream);
    if (result == PostResult::kAgain) break;
    any = true;
    if (result == PostResult::kRejected) {
      SettleIfFinished(operation);
      return true;
    }
    if (stream.next_index == stream.count) break;
  }
  if (stream.next_index == stream.count) {
    Unqueue(stream);
  } else if (any) {
    // Others that wait for the same peer get their turn.
    lane.Remove(&stream);
    lane.Append(&stream);
  }
  return any;
}

bool GroupDriver::PollCompletions() {
  bool any = false;
  // Domains write whole entries: making them first would be most of what a poll costs that finds nothing.
  alignas(Completion) std::array<std::byte, kCompletionsPerPoll * sizeof(Completion)> storage;
  const std::span<Completion> completions(reinterpret_cast<Completion*>(storage.data()), kCompletionsPerPoll);
  for (uint32_t nic = 0; nic < domains_.size(); ++nic) {
    for (int round = 0; round < kPollRounds; ++round) {
      const size_t count = domains_[nic]->Poll(completions);
      for (size_t i = 0; i < count; ++i) HandleCompletion(nic, completions[i]);
      any |= count > 0;
      if (count < completions.size()) break;
    }
  }
  return any;
}

void GroupDriver::HandleCompletion(uint32_t nic, const Completion& completion) {
  switch (completion.kind) {
    case CompletionKind::kImmediate:
      return imm_counter_.Count(completion.immediate, completion.count);
    case CompletionKind::kWrite:
    case CompletionKind::kSend:
      return HandlePost(nic, completion);
    case CompletionKind::kReceive:
      if (on_receive_ != nullptr) on_receive_->OnReceive(completion, PeerById(nic, completion.peer));
      return;
    case CompletionKind::kPeerFault:
      if (Peer* peer = PeerById(nic, completion.peer)) {
        const ErrorCode code = completion.code == ErrorCode::kOk ? ErrorCode::kUnavailable : completion.code;
        FailPeer(*peer, PeerState::kFailed, code, fmt::format("the peer is lost: {}", domains_[nic]->last_error()));
      }
      return;
  }
}

void GroupDriver::HandlePost(uint32_t nic, const Completion& completion) {
  Stream& stream = *reinterpret_cast<Stream*>(completion.context);
  Operation& operation = *stream.operation;
  stream.lane->in_flight -= completion.count;
  stream.in_flight -= completion.count;
  operation.in_flight_ -= completion.count;
  if (completion.code == ErrorCode::kOk) {
    operation.done_ += completion.count;
  } else {
    const Peer& peer = *stream.lane->peer;
    // Of a lost peer's requests the first cause is the one to tell, not what each of them came back with.
    if (peer.state.load(std::memory_order_relaxed) == PeerState::kReady) {
      DropStream(stream, completion.code, domains_[nic]->last_error());
    } else {
      DropStream(stream, ErrorCode::kUnavailable, peer.cause.message);
    }
  }
  SettleIfFinished(operation);
}

void GroupDriver::SettleIfFinished(Operation& operation) {
  if (!operation.finished()) return;
  DeadlineList::Remove(&operation);
  --operations_;
  if (operation.admitted_) grants_->Retire(operation);
  if (operation.reported_) return operation.owner_->OnSettled(nullptr, Settlement::kDrained);
  if (!operation.failed()) return operation.owner_->OnSettled(nullptr, Settlement::kDone);
  const Error error = operation.Describe(name_);
  operation.owner_->OnSettled(&error, Settlement::kDone);
}

bool GroupDriver::ExpireDeadlines(int64_t now_ns) {
  int count = imm_counter_.Expire(now_ns);
  count += deadlines_.Expire(now_ns, [this](DeadlineNode* node) { Expire(*static_cast<Operation*>(node)); });
  return count > 0;
}

void GroupDriver::Expire(Operation& operation) {
  operation.FailLate();
  Withdraw(operation);
  if (operation.finished()) return SettleIfFinished(operation);
  operation.reported_ = true;
  const Error error = operation.Describe(name_);
  operation.owner_->OnSettled(&error, Settlement::kReported);
}

void GroupDriver::BeginCancel(Operation& operation, std::string_view cause) {
  operation.Fail(ErrorCode::kCancelled, std::string(cause));
  Withdraw(operation);
  SettleIfFinished(operation);
}

void GroupDriver::Connect(Peer& peer) {
  peers_.push_back(&peer);
  for (uint32_t nic = 0; nic < domains_.size(); ++nic) {
    Lane& lane = peer.lanes[nic];
    lane.peer = &peer;
    lane.domain = domains_[nic].get();
    lane.nic = nic;
  }
  if (closed_) return FailPeer(peer, PeerState::kFailed, ErrorCode::kCancelled, "the engine is closed");
  for (uint32_t nic = 0; nic < domains_.size(); ++nic) {
    const Result<PeerId> id = domains_[nic]->AddPeer(peer.address.nics[nic]);
    if (!id.has_value()) return FailPeer(peer, PeerState::kFailed, id.error().code, id.error().message);
    peer.lanes[nic].id = *id;
    peer.ids[nic].store(*id, std::memory_order_relaxed);  // published by the release of `state`
    if (peers_by_id_[nic].size() <= *id) peers_by_id_[nic].resize(*id + 1);
    peers_by_id_[nic][*id] = &peer;
  }
  peer.next_connecting = connecting_;
  connecting_ = &peer;
}

bool GroupDriver::PollConnecting() {
  bool any = false;
  for (Peer** link = &connecting_; *link != nullptr;) {
    Peer& peer = **link;
    bool all_ready = true;
    for (uint32_t nic = 0;
         nic < domains_.size() && peer.state.load(std::memory_order_relaxed) == PeerState::kConnecting; ++nic) {
      const PeerState state = domains_[nic]->peer_state(peer.lanes[nic].id);
      all_ready &= state == PeerState::kReady;
      if (state == PeerState::kFailed || state == PeerState::kRemoved) {
        FailPeer(peer, PeerState::kFailed, ErrorCode::kUnavailable,
                 fmt::format("could not connect over {}: {}", domains_[nic]->name(), domains_[nic]->last_error()));
      }
    }
    const bool connecting = peer.state.load(std::memory_order_relaxed) == PeerState::kConnecting;
    if (connecting && !all_ready) {
      link = &peer.next_connecting;
      continue;
    }
    if (connecting) {
      peer.state.store(PeerState::kReady, std::memory_order_seq_cst);  // partners: WaitPeers, MapRemote
      hub_.Notify();
    }
    *link = peer.next_connecting;
    any = true;
  }
  return any;
}

void GroupDriver::FailPeer(Peer& peer, PeerState state, ErrorCode code, std::string cause) {
  const PeerState before = peer.state.load(std::memory_order_relaxed);
  if (before == PeerState::kRemoved || before == state) return;
  // The first cause stays: readers of kFailed may be looking at it.
  if (before != PeerState::kFailed) peer.cause = Error{code, std::move(cause)};
  peer.state.store(state, std::memory_order_seq_cst);  // partner: WaitPeers
  for (uint32_t nic = 0; nic < domains_.size(); ++nic) {
    Lane& lane = peer.lanes[nic];
    while (lane.head != nullptr) {
      Operation& operation = *lane.head->operation;
      DropStream(*lane.head, ErrorCode::kUnavailable, peer.cause.message);
      SettleIfFinished(operation);
    }
  }
  grants_->OnPeerLost(peer.handle);
  imm_counter_.CountPeerLoss();
  hub_.Notify();
}

void GroupDriver::Remove(Peer& peer) {
  if (peer.state.load(std::memory_order_relaxed) == PeerState::kRemoved) return;
  FailPeer(peer, PeerState::kRemoved, ErrorCode::kUnavailable,
           closed_ ? "the engine is closed" : "the peer was removed");
  for (uint32_t nic = 0; nic < domains_.size(); ++nic) {
    const PeerId id = peer.lanes[nic].id;
    if (id != Completion::kUnknownPeer && PeerById(nic, id) == &peer) domains_[nic]->RemovePeer(id);
  }
}

void GroupDriver::Close(Deadline deadline) {
  if (closed_) return;
  closed_ = true;
  close_deadline_ = deadline;
  imm_counter_.Close();
  deadlines_.ExpireAll([this](DeadlineNode* node) {
    Operation& operation = *static_cast<Operation*>(node);
    // Still bounded while it drains.
    deadlines_.Insert(&operation, close_deadline_.at_ns);
    operation.Fail(ErrorCode::kCancelled, "the engine is closed");
    Withdraw(operation);
    SettleIfFinished(operation);
  });
  for (Peer* peer : peers_) Remove(*peer);
  grants_->EndAll();
}

void GroupDriver::PublishQuiescence() {
  if (operations_ > 0 || quiescent_.load(std::memory_order_relaxed)) return;
  quiescent_.store(true, std::memory_order_seq_cst);  // partner: the engine's Close
  hub_.Notify();
}

Peer* GroupDriver::PeerById(uint32_t nic, PeerId id) const {
  return id < peers_by_id_[nic].size() ? peers_by_id_[nic][id] : nullptr;
}

bool GroupDriver::CanSleep() const {
  // What waits in a lane may become possible without a sign of the domain's, and so may connections.
  return taken_ == nullptr && queue_.Empty() && first_waiting_ == nullptr && connecting_ == nullptr;
}

int64_t GroupDriver::earliest_deadline_ns() const {
  return std::min({deadlines_.earliest_ns(), imm_counter_.earliest_deadline_ns(), grants_->next_ns()});
}

bool GroupDriver::ArmWait() {
  bool armed = true;
  for (const auto& domain : domains_) armed &= domain->ArmWait();
  return armed;
}

}  // namespace jax_fabric
