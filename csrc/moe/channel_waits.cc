// What ends a wait of a channel that nobody fulfils: the deadline, or the loss of a peer; and what its error says.
#include <algorithm>
#include <atomic>
#include <string>

#include "csrc/moe/channel.h"
#include "csrc/moe/exchange_name.h"

namespace jax_fabric::moe {
void Channel::ArmTimer() {
  if (poison_ || timer_.outstanding || !pending()) return;
  // Before looking: whoever is lost afterwards ends the timer.
  const uint64_t losses = group_->peer_losses();
  PoisonIfPeerIsLost();
  if (poison_) return;
  timer_ends_grace_ = has_lost_rank_;
  const int64_t wait_us = has_lost_rank_ ? config_.LossGraceUs() : config_.timeout_us;
  const auto armed = group_->ExpectImmediate(peers_.Immediate(peers_.rank, index_, ChannelImmediate::kTimer), 1,
                                             Deadline::After(group_->clock(), wait_us), CallbackFor(&timer_), losses);
  if (!armed) {
    timer_.outstanding = false;
    Poison(armed.error());
  }
}

void Channel::OnTimer(Signal& signal) {
  if (poison_) return;
  if (signal.error && signal.error->code == ErrorCode::kUnavailable) return ArmTimer();
  if (signal.error && signal.error->code != ErrorCode::kDeadlineExceeded) return Poison(*signal.error);
  // All that the worker had counted by then has been handled: its callbacks come in order.
  grace_over_ = grace_over_ || timer_ends_grace_;
  const Clock& clock = group_->clock();
  const auto late = [&clock](const OperationList& list) {
    return !list.empty() && list.front()->deadline_.Passed(clock);
  };
  // The exchange in flight and an awaited number have deadlines of their own; what is left is an operation whose turn
  // does not come.
  if (late(unnumbered_) || late(numbered_)) {
    if (packed_ && !arrived_) return Poison(NameAbsentRanks(*signal.error));
    // The timer may be before the awaited number's deadline, which begins anew with every announcement.
    if (!leads() && current_ == nullptr && numbered_.empty()) return Poison(NameLeader(*signal.error));
    return Poison(NameBlockedTurn());
  }
  ArmTimer();
}

void Channel::PoisonIfPeerIsLost() {
  if (!pending()) return;
  losses_looked_at_ = group_->peer_losses();
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == peers_.rank || config_.IsAbsent(rank)) continue;
    const Status status = group_->PeerStatus(peers_.peers[rank].handle);
    if (status) continue;
    has_lost_rank_ = true;
    if (packed_ && (arrived_ || (!grace_over_ && HasMessageOf(rank)))) continue;
    // It may have left while others still have calls to make.
    const char* const hint = packed_ ? "" : ". Do all ranks run the same program?";
    return Poison(
        Error{ErrorCode::kUnavailable, fmt::format("{}: rank {} waits for rank {}, which is lost: {}{}",
                                                   NameOfPending(), peers_.rank, rank, status.error().message, hint)});
  }
}

// The engine knows it by the name of its process and device. A write may fail before its peer is known to be lost.
std::string Channel::NameTarget(const Error& error) const {
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == peers_.rank || config_.IsAbsent(rank) || group_->PeerStatus(peers_.peers[rank].handle)) continue;
    return fmt::format(" to rank {}, which is lost", rank);
  }
  const std::optional<int32_t> rank = peers_.RankNamedBy(error, *group_);
  return rank ? fmt::format(" to rank {}", *rank) : std::string();
}

// A late peer may be writing it right now, as a NIC would: by plain stores, of which ThreadSanitizer sees those of
// peers in this process. Whatever is read chooses words and a delay only, so it is not looked at here.
__attribute__((no_sanitize("thread"))) bool Channel::HasMessageOf(int32_t rank) const {
  const auto* header = static_cast<const kernels::MessageHeader*>(OwnSlot(rank, exchanges_ + 1));
  return __atomic_load_n(&header->sequence, __ATOMIC_RELAXED) == exchanges_ + 1;
}

Error Channel::NameBlockedTurn() const {
  const char* state = "has not ended on this rank";
  if (current_ == nullptr) state = "has not started on this rank";
  if (current_ != nullptr && !current_->can_unpack()) {
    state =
        "was started on this rank and nobody has called its done: calls in flight at once need channels of their own";
  }
  return Error{ErrorCode::kDeadlineExceeded,
               fmt::format("moe (channel {}): a call on rank {} waited {} s for its turn: call {} {}", index_,
                           peers_.rank, config_.timeout_us / 1e6, finished_ + 1, state)};
}

Error Channel::NameAbsentRanks(const Error& cause) const {
  std::string absent;
  int32_t count = 0;
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == peers_.rank || config_.IsAbsent(rank)) continue;
    if (HasMessageOf(rank)) continue;
    absent += fmt::format("{}{}", absent.empty() ? "" : ", ", rank);
    ++count;
  }
  if (count == 0) {
    return Error{cause.code, fmt::format("{}: rank {} waited {} s. All messages are here, and a rank has not told that "
                                         "its is complete. {}",
                                         NameOfCurrent(), peers_.rank, config_.timeout_us / 1e6, cause.message)};
  }
  return Error{cause.code, fmt::format("{}: rank {} waited {} s for rank(s) {}; {} of {} ranks came. {}",
                                       NameOfCurrent(), peers_.rank, config_.timeout_us / 1e6, absent,
                                       config_.PresentRanks() - count, config_.PresentRanks(), cause.message)};
}

Error Channel::NameLeader(const Error& cause) const {
  return Error{
      cause.code,
      fmt::format("moe (channel {}): rank {} waited {} s for rank {} to start the same call. Do all ranks run the "
                  "same program? {}",
                  index_, peers_.rank, config_.timeout_us / 1e6, leader_, cause.message)};
}

std::string Channel::NameOfPending() const {
  if (current_ != nullptr) return NameOfCurrent();
  if (!pending()) return fmt::format("moe (channel {})", index_);
  const ExchangeOperation* next = numbered_.empty() ? unnumbered_.front() : numbered_.front();
  return fmt::format("moe {} (channel {})", NameOf(next->kind_), index_);
}

std::string Channel::NameOfCurrent() const {
  const int32_t rounds = current_->rounds();
  std::string round;
  if (rounds == 0) round = fmt::format(", round {}", round_ + 1);
  if (rounds > 1) round = fmt::format(", round {} of {}", round_ + 1, rounds);
  return fmt::format("moe {} (channel {}, call {}{})", NameOf(current_->kind_), index_, finished_ + 1, round);
}

}  // namespace jax_fabric::moe
