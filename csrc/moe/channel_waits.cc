// What ends a wait of a channel that nobody fulfils: the deadline, the loss of a peer, or a peer's notice that it has
// given up; what the error says, and how the others hear of it.
#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>

#include "csrc/moe/channel.h"
#include "csrc/moe/exchange_name.h"

namespace jax_fabric::moe {
namespace {

constexpr std::string_view kSameProgram = "Do all ranks run the same program?";

}  // namespace

void Channel::ArmTimer() {
  if (poison_ || timer_.outstanding || !pending()) return;
  // Before looking: whoever is lost afterwards ends the timer.
  const uint64_t losses = group_->peer_losses();
  GiveUpIfPeerIsGone();
  if (poison_) return;
  timer_ends_grace_ = has_lost_rank_ && !grace_over_;
  // Begins once: alarms that come one after the other do not put it off.
  if (timer_ends_grace_ && !grace_end_) grace_end_ = Deadline::After(group_->clock(), config_.LossGraceUs());
  const Deadline deadline = timer_ends_grace_ ? *grace_end_ : Deadline::After(group_->clock(), config_.timeout_us);
  const auto armed = group_->ExpectImmediate(peers_.Immediate(peers_.rank, index_, ChannelImmediate::kAlarm), 1,
                                             deadline, CallbackFor(&timer_), losses);
  if (!armed) {
    timer_.outstanding = false;
    GiveUp(armed.error());
  }
}

void Channel::OnTimer(Signal& signal) {
  if (poison_) return;
  if (!signal.error) {
    // A notice has come. Some may hear of it from this rank only, which perhaps has all that it waits for.
    if (const auto notice = notices_.FirstNotice()) Tell(*notice);
    return ArmTimer();
  }
  if (signal.error->code == ErrorCode::kUnavailable) return ArmTimer();
  if (signal.error->code != ErrorCode::kDeadlineExceeded) return GiveUp(*signal.error);
  // All that the worker had counted by then has been handled: its callbacks come in order.
  grace_over_ = grace_over_ || timer_ends_grace_;
  const Clock& clock = group_->clock();
  const auto late = [&clock](const OperationList& list) {
    return !list.empty() && list.front()->deadline_.Passed(clock);
  };
  // The exchange in flight and an awaited number have deadlines of their own; what is left is an operation whose turn
  // does not come.
  if (late(unnumbered_) || late(numbered_)) {
    if (packed_ && !arrived_) return GiveUp(NameAbsentRanks(*signal.error));
    // The timer may be before the awaited number's deadline, which begins anew with every announcement.
    if (!leads() && current_ == nullptr && numbered_.empty()) return GiveUp(NameLeader(*signal.error));
    return GiveUp(NameBlockedTurn());
  }
  ArmTimer();
}

void Channel::GiveUpIfPeerIsGone() {
  if (!pending()) return;
  losses_looked_at_ = group_->peer_losses();
  const auto departure = notices_.FirstDeparture([this](const NoticeBoard::Departure& gone, int32_t rank) {
    has_lost_rank_ = true;
    if (packed_ && arrived_) return false;
    // What a lost rank has sent is here, or not coming; what one that lives has sent may have been overtaken.
    if (!gone.is_lost()) return grace_over_ || gone.notice->sent_exchanges <= exchanges_;
    return !packed_ || grace_over_ || !HasMessageOf(rank);
  });
  if (!departure) return;
  // It may have left while others still have calls to make, or have waited for a call that nobody makes here.
  const bool asks = departure->words.find(kSameProgram) != std::string::npos;
  const bool may_differ = departure->is_lost() || departure->code == ErrorCode::kDeadlineExceeded;
  const std::string question = packed_ || asks || !may_differ ? "" : fmt::format(". {}", kSameProgram);
  const Error error{departure->code, fmt::format("{}: rank {} waits for {}{}", NameOfPending(), peers_.rank,
                                                 departure->words, question)};
  if (departure->is_lost()) return GiveUp(error);
  GiveUp(error, *departure->notice);
}

void Channel::GiveUpSend(Error error) {
  GiveUpIfPeerIsGone();  // says more
  error.message =
      fmt::format("{}: rank {} cannot send{}: {}", NameOfPending(), peers_.rank, NameTarget(error), error.message);
  GiveUp(error);
}

void Channel::GiveUp(const Error& error) {
  GiveUp(error, FailureNotice{peers_.rank, error.code, error.message, exchanges_ + (packed_ ? 1 : 0)});
}

void Channel::GiveUp(const Error& error, const FailureNotice& told) {
  if (poison_) return;
  // Else the engine ends, and its peers hear of that.
  if (error.code != ErrorCode::kCancelled && !alone()) Tell(told);
  Poison(error);
}

void Channel::Tell(const FailureNotice& notice) {
  if (notice_sent_.outstanding) return;
  notice_sent_.outstanding = notices_.Tell(notice, CallbackFor(&notice_sent_)).has_value();
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
  return Error{cause.code,
               fmt::format("moe (channel {}): rank {} waited {} s for rank {} to start the same call. {} {}", index_,
                           peers_.rank, config_.timeout_us / 1e6, leader_, kSameProgram, cause.message)};
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
