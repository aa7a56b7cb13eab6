// Polling, sleeping, and what is done now and then.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "csrc/engine/domains/local/local_domain_impl.h"

namespace jax_fabric::local {
namespace {

constexpr uint32_t kPollsBetweenClockReads = 64;
constexpr int64_t kHousekeepingNs = 100'000;
constexpr int64_t kLivenessNs = 200'000'000;
constexpr uint32_t kTimerTag = Completion::kUnknownPeer - 1;
constexpr int kConnectsPerPoll = 8;

}  // namespace

size_t LocalDomain::Poll(std::span<Completion> out) {
  Disarm();
  if (woken_ || ++polls_ % kPollsBetweenClockReads == 0) Housekeep();
  if (!connecting_.empty()) PollConnecting();
  if (!deferred_.empty()) AdvanceDeferred();

  if (!out.empty() && !faults_.empty()) {
    // By itself, so that last_error() is its cause.
    std::tie(out[0], last_error_) = std::move(faults_.front());
    faults_.pop_front();
    return 1;
  }
  size_t count = 0;
  // Whoever is first may fill everything, so they take turns.
  incoming_first_ = !incoming_first_;
  if (incoming_first_) count += TakeIncoming(out.subspan(count));
  count += TakeOwn(out.subspan(count));
  if (!incoming_first_) count += TakeIncoming(out.subspan(count));
  return count;
}

size_t LocalDomain::TakeOwn(std::span<Completion> out) {
  size_t count = 0;
  for (; count < out.size() && !completions_.empty(); ++count) {
    out[count] = completions_.Pop();
    outstanding_ -= out[count].count;
  }
  return count;
}

size_t LocalDomain::TakeIncoming(std::span<Completion> out) {
  // Relaxed: what the new lanes hold is acquired by LaneReader::Open; a change seen late is seen in the next Poll.
  if (mailbox_.header().lane_changes.load(std::memory_order_relaxed) != lane_changes_seen_) RescanLanes();
  size_t count = 0;
  for (size_t turns = lanes_.size(); turns > 0 && count < out.size(); --turns) {
    if (next_lane_ >= lanes_.size()) next_lane_ = 0;
    count += TakeFromLane(lanes_[next_lane_++], out.subspan(count));
  }
  if (lanes_are_closing_) FreeClosingLanes();
  return count;
}

size_t LocalDomain::TakeFromLane(LaneReader& lane, std::span<Completion> out) {
  size_t count = 0;
  // Messages first: they are bounded by the posted receives, immediates could keep them out for ever.
  while (count < out.size() && !receives_.empty()) {
    const auto message = lane.FrontMessage();
    if (!message) break;
    out[count++] = Deliver(lane, *message);
    lane.TakeMessage(message->size());
  }
  uint32_t immediate = 0;
  uint32_t times = 0;
  uint32_t landed = 0;
  while (count < out.size() && landed < kBounceSlots && lane.TakeImmediate(immediate, times)) {
    if (times == kBounceCount) {
      Land(lane, immediate);
      ++landed;
      continue;
    }
    Completion completion;
    completion.kind = CompletionKind::kImmediate;
    completion.peer = lane.peer;
    completion.immediate = immediate;
    completion.count = times;
    out[count++] = completion;
  }
  if (count + landed > 0) lane.PublishTaken();
  return count;
}

void LocalDomain::Land(LaneReader& lane, uint32_t slot) {
  BounceSlot* bounce = lane.FrontBounce(slot);
  if (bounce == nullptr) return;
  // Read once: the sender can change it, and what was checked must be what is used.
  const uint64_t length = std::min<uint64_t>(*const_cast<const volatile uint32_t*>(&bounce->length), kBounceBytes);
  const bool landed = !lane.refused() && regions_.Land(bounce->key, bounce->address, {bounce->bytes, length});
  lane.FinishBounce(*bounce, landed ? BounceState::kLanded : BounceState::kRefused);
}

Completion LocalDomain::Deliver(const LaneReader& lane, ByteView message) {
  const ReceiveRequest receive = receives_.Pop();
  Completion completion;
  completion.kind = CompletionKind::kReceive;
  completion.peer = lane.peer;
  completion.context = receive.context;
  completion.length = message.size();
  const uint64_t count = std::min<uint64_t>(message.size(), receive.length);
  if (count > 0) std::memcpy(receive.target, message.data(), count);
  if (receive.length > 0) regions_.Release(receive.local_key);
  if (message.size() > receive.length) {
    completion.code = ErrorCode::kOutOfRange;
    last_error_ =
        fmt::format("a message of {} bytes came for a receive buffer of {}: post buffers of max_message_bytes",
                    message.size(), receive.length);
  }
  return completion;
}

// --- lanes come and go

void LocalDomain::RescanLanes() {
  // Acquire, with the fetch_add in LaneWriter: the owner words are at least as new as the count.
  lane_changes_seen_ = mailbox_.header().lane_changes.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < lane_is_open_.size(); ++i) {
    if (lane_is_open_[i]) continue;
    auto lane = LaneReader::Open(mailbox_, i);
    if (!lane) continue;
    lane_is_open_[i] = true;
    lane->peer = KnownPeer(lane->sender_incarnation());
    lanes_.push_back(*lane);
  }
  lanes_are_closing_ = true;  // perhaps: FreeClosingLanes finds out
}

void LocalDomain::FreeClosingLanes() {
  lanes_are_closing_ = false;
  for (size_t i = 0; i < lanes_.size();) {
    LaneReader& lane = lanes_[i];
    if (!lane.Closing()) {
      ++i;
    } else if (lane.HasImmediateAfterArming() || lane.HasMessageAfterArming()) {
      lanes_are_closing_ = true;  // not yet empty
      ++i;
    } else {
      lane_is_open_[lane.lane()] = false;
      lane.Free();
      lane = lanes_.back();
      lanes_.pop_back();
    }
  }
}

// --- sleeping

bool LocalDomain::ArmWait() {
  if (!completions_.empty() || !faults_.empty() || !deferred_.empty() || !connecting_.empty()) return false;
  if (IsStarved()) return false;
  // Seq_cst: Dekker with the senders, see Mailbox::RingIfArmed.
  mailbox_.header().armed.store(1, std::memory_order_seq_cst);
  armed_ = true;
  if (!SomethingCame()) return true;
  Disarm();
  return false;
}

bool LocalDomain::IsStarved() {
  bool starved = false;
  for (LocalPeer* peer : live_) {
    if (!peer->starved_of_immediates && !peer->starved_of_message) continue;
    // Nobody rings when a lane has room again, so whoever waits for that must go on polling, and once more when there
    // is room.
    starved = true;
    if (peer->lane().HasImmediateRoom()) peer->starved_of_immediates = false;
    if (peer->starved_of_message && peer->lane().HasMessageRoom(*peer->starved_of_message)) {
      peer->starved_of_message.reset();
    }
  }
  return starved;
}

bool LocalDomain::SomethingCame() const {
  if (mailbox_.header().lane_changes.load(std::memory_order_seq_cst) != lane_changes_seen_) return true;
  for (const LaneReader& lane : lanes_) {
    if (lane.HasImmediateAfterArming() || (!receives_.empty() && lane.HasMessageAfterArming())) return true;
  }
  return std::any_of(live_.begin(), live_.end(),
                     [](const LocalPeer* peer) { return peer->state() == PeerState::kReady && peer->closed(); });
}

void LocalDomain::Disarm() {
  if (!armed_) return;
  armed_ = false;
  woken_ = true;
  // Relaxed: a sender that still sees 1 rings in vain.
  mailbox_.header().armed.store(0, std::memory_order_relaxed);
}

// --- now and then

void LocalDomain::Housekeep() {
  const int64_t now = SteadyClock::Get().NowNs();
  if (!woken_ && now < next_housekeeping_ns_) return;
  woken_ = false;
  next_housekeeping_ns_ = now + kHousekeepingNs;
  HandleEvents();
  for (size_t i = live_.size(); i-- > 0;) {  // backwards: FailPeer takes it out
    if (live_[i]->state() != PeerState::kReady) continue;
    if (live_[i]->closed() || live_[i]->lane().refused()) {
      FailPeer(*live_[i], ErrorCode::kUnavailable, std::string(live_[i]->WhyLost()));
    }
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i].broken() || lanes_[i].abandoned) continue;
    lanes_[i].abandoned = lanes_are_closing_ = true;
    LocalPeer* peer = FindPeer(lanes_[i].peer);
    if (peer != nullptr) FailPeer(*peer, ErrorCode::kDataLoss, "it wrote nonsense into our mailbox");
  }
  if (now < next_liveness_ns_) return;
  next_liveness_ns_ = now + kLivenessNs;
  CheckLiveness();
}

void LocalDomain::HandleEvents() {
  std::array<epoll_event, 16> events;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    const uint32_t tag = events[i].data.u32;
    uint64_t ignored = 0;
    if (tag == Completion::kUnknownPeer || tag == kTimerTag) {
      const int fd = tag == kTimerTag ? liveness_timer_.get() : mailbox_.doorbell_fd();
      [[maybe_unused]] const ssize_t size = read(fd, &ignored, sizeof(ignored));
    } else if (LocalPeer* peer = FindPeer(tag)) {
      FailPeer(*peer, ErrorCode::kUnavailable, "its process has ended");
    }
  }
}

void LocalDomain::PollConnecting() {
  for (int i = 0; i < kConnectsPerPoll && !connecting_.empty(); ++i) {
    LocalPeer& peer = *peers_[connecting_.front()];
    connecting_.pop_front();
    auto result = peer.PollConnect(options_, hub_.process(), incarnation_);
    if (!result) {
      connecting_.push_back(peer.id());
      continue;
    }
    if (!result->has_value()) {
      FailPeer(peer, result->error().code, result->error().message);
      continue;
    }
    Log(fmt::format("{} is reached by {}", peer.label(), peer.path()));
    if (peer.pidfd() >= 0 && Watch(peer.pidfd(), peer.id()).has_value()) continue;
    if (liveness_timer_.valid()) continue;
    // No pidfd: look again and again, also while the driving thread sleeps on wait_fd.
    liveness_timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    const timespec interval = {0, kLivenessNs};
    const itimerspec period = {interval, interval};
    timerfd_settime(liveness_timer_.get(), 0, &period, nullptr);
    if (const Status watched = Watch(liveness_timer_.get(), kTimerTag); !watched.has_value()) {
      Log(watched.error().message);
    }
  }
}

void LocalDomain::CheckLiveness() {
  for (size_t i = live_.size(); i-- > 0;) {
    LocalPeer& peer = *live_[i];
    const ProcessIdentity& process = peer.address().process;
    if (peer.state() == PeerState::kReady && !peer.same_process() && peer.pidfd() < 0 &&
        !ProcessIsAlive(process.pid, process.start_time)) {
      FailPeer(peer, ErrorCode::kUnavailable, "its process has ended");
    }
  }
  // Lanes of senders that we do not know as peers, so that nothing else tells us of their end.
  for (LaneReader& lane : lanes_) {
    if (lane.peer == Completion::kUnknownPeer && lane.sender_pid() != hub_.process().pid && !lane.abandoned &&
        !ProcessIsAlive(lane.sender_pid(), lane.sender_start_time())) {
      lane.abandoned = lanes_are_closing_ = true;
    }
  }
  FreeHalfClaimedLanes();
}

void LocalDomain::FreeHalfClaimedLanes() {
  for (uint32_t i = 0; i < lane_is_open_.size(); ++i) {
    std::atomic<uint64_t>& word = mailbox_.lane_owner(i);
    uint64_t owner = word.load(std::memory_order_relaxed);
    if (LaneOwnerState(owner) != LaneState::kClaiming) continue;
    if (kill(static_cast<pid_t>(LaneOwnerPid(owner)), 0) == 0 || errno != ESRCH) continue;
    // Its claimer died before it had put anything in. Release: as in LaneReader::Free.
    word.compare_exchange_strong(owner, LaneOwner(LaneState::kFree, 0), std::memory_order_release,
                                 std::memory_order_relaxed);
  }
}

}  // namespace jax_fabric::local
