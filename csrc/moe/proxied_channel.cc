#include "csrc/moe/proxied_channel.h"

#include <algorithm>
#include <utility>

#include "csrc/kernels/message_fault.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::moe {
namespace {

using kernels::SignalError;

}  // namespace

Result<std::unique_ptr<ProxiedChannel>> ProxiedChannel::Create(int32_t index, const MoeConfig& config,
                                                               const PeerTable& peers,
                                                               const std::vector<uint8_t>& through_host,
                                                               DomainGroup* group, const DeviceWords& words) {
  std::unique_ptr<ProxiedChannel> channel(new ProxiedChannel(index, config, peers, group, words));
  JF_RETURN_IF_ERROR(channel->Prepare(through_host));
  return channel;
}

ProxiedChannel::ProxiedChannel(int32_t index, const MoeConfig& config, const PeerTable& peers, DomainGroup* group,
                               const DeviceWords& words)
    : index_(index),
      config_(config),
      peers_(peers),
      group_(group),
      words_(words),
      host_line_(words.on_device != nullptr ? words.on_device : &words.signals->host, words.on_device != nullptr),
      notices_(index, config, peers, group) {
  for (Signal& signal : sends_) signal.channel = this;
  for (Signal& signal : arrivals_) signal.channel = this;
}

Status ProxiedChannel::Prepare(const std::vector<uint8_t>& through_host) {
  const int32_t ranks = config_.layout.shape.ranks, me = peers_.rank;
  // Each rank begins with its neighbour, so that not everybody writes to rank 0 first.
  for (int32_t i = 1; i < ranks; ++i) {
    const int32_t rank = (me + i) % ranks;
    if (through_host[rank] != 0) entry_ranks_.push_back(rank);
  }
  entries_ = entry_ranks_.size();
  for (int parity = 0; parity < 2 && entries_ > 0; ++parity) {
    std::vector<ScatterEntry> entries;
    for (const int32_t rank : entry_ranks_) {
      const Peer& peer = peers_.peers[rank];
      const int64_t channel_offset = config_.ChannelOffset(index_);
      ScatterEntry entry;
      entry.peer = peer.handle;
      entry.source_memory = peers_.staging_memory;
      entry.source = static_cast<std::byte*>(peers_.staging_memory.address) + channel_offset +
                     config_.layout.SlotOffset(rank, parity);
      entry.length = config_.layout.SlotBytes();
      entry.target = &peer.memory;
      entry.target_offset = channel_offset + config_.layout.SlotOffset(me, parity);
      entry.immediate = peers_.Immediate(rank, index_, ArrivalImmediate(parity));
      entries.push_back(entry);
    }
    JF_ASSIGN_OR_RETURN(sends_[parity].scatter, group_->PrepareScatter(entries));
  }
  return {};
}

void ProxiedChannel::StartPolling() {
  ExpectAlarm();
  const auto urgency = entries_ > 0 ? PollerSet::Urgency::kUrgent : PollerSet::Urgency::kRelaxed;
  poller_ = group_->AddPoller([this] { return Poll(); }, urgency);
}

const Error* ProxiedChannel::error() {
  const Error* error = visible_error_.load(std::memory_order_acquire);
  if (error != nullptr) return error;
  HearDevice();
  return visible_error_.load(std::memory_order_acquire);
}

void ProxiedChannel::HearDevice() {
  // Acquires what the device has released.
  if (std::atomic_ref(words_.signals->error.sequence).load(std::memory_order_acquire) == 0) return;
  Stop(FailureOfDevice());
}

bool ProxiedChannel::Poll() {
  if (visible_error_.load(std::memory_order_acquire) != nullptr) return false;
  // Acquires what the device has released: its messages.
  const int64_t posted = std::atomic_ref(words_.signals->posted.sequence).load(std::memory_order_acquire);
  if (posted != posted_) {
    posted_ = posted;
    if (const Status status = Post(posted); !status) Stop(FailureOf(status.error()));
    return true;
  }
  if (error() != nullptr) return true;
  LookForDepartures();
  return false;
}

Status ProxiedChannel::Post(int64_t sequence) {
  if (entries_ == 0) return {};  // kernels recorded with peers that are all lost now, and for whom nothing waits
  const Deadline deadline = Deadline::After(group_->clock(), config_.timeout_us);
  Signal& send = sends_[sequence & 1];
  Signal& arrival = arrivals_[sequence & 1];
  send.sequence = arrival.sequence = sequence;
  // The device has just stored them: all of them are on their way before the first is needed.
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; rank += 8) __builtin_prefetch(&words_.message_bytes[rank]);
  // Once: it takes divisions, and the first write waits for all of these checks.
  const int64_t slot_bytes = config_.layout.SlotBytes();
  for (size_t i = 0; i < entries_; ++i) {
    const int64_t bytes = words_.message_bytes[entry_ranks_[i]];
    if (bytes < 0 || bytes > slot_bytes) {
      return MakeError(ErrorCode::kDataLoss,
                       "{}: the device says that the message to rank {} has {} bytes, and a slot "
                       "has {}",
                       Name(sequence), entry_ranks_[i], bytes, slot_bytes);
    }
    send.scatter->SetLength(i, bytes);
  }
  // release, with the acquire in Quiet; before the callbacks can come.
  outstanding_.fetch_add(2, std::memory_order_release);
  Status status = send.scatter->Post(deadline, WorkerCallback{[](void* context, const Error* error) {
                                                                const auto& signal = *static_cast<Signal*>(context);
                                                                signal.channel->OnSent(signal, error);
                                                              },
                                                              &send});
  if (!status) {
    outstanding_.fetch_sub(2, std::memory_order_release);
    return status;
  }
  status = group_->ExpectImmediate(peers_.Immediate(peers_.rank, index_, ArrivalImmediate(sequence)),
                                   static_cast<uint32_t>(entries_), deadline,
                                   WorkerCallback{[](void* context, const Error* error) {
                                                    const auto& signal = *static_cast<Signal*>(context);
                                                    signal.channel->OnArrival(signal, error);
                                                  },
                                                  &arrival});
  if (!status) outstanding_.fetch_sub(1, std::memory_order_release);
  return status;
}

void ProxiedChannel::OnArrival(const Signal& signal, const Error* error) {
  if (error == nullptr) {
    arrived_ = signal.sequence;
    FinishIfComplete();
  } else if (error->code != ErrorCode::kDeadlineExceeded) {
    // At a deadline, which is its own too, the device says more: whose messages are missing.
    Refuse(FailureOf(*error));
  }
  outstanding_.fetch_sub(1, std::memory_order_release);
}

void ProxiedChannel::OnSent(const Signal& signal, const Error* error) {
  if (error == nullptr) {
    left_[signal.sequence & 1] = signal.sequence;
    FinishIfComplete();
  } else {
    const std::optional<int32_t> rank = peers_.RankNamedBy(*error, *group_);
    const auto departure = rank ? notices_.DepartureOf(*rank) : std::nullopt;
    const std::string target = rank ? fmt::format(" to rank {}", *rank) : "";
    Refuse(departure ? FailureOf(*departure)
                     : FailureOf(Error{error->code, fmt::format("{}: rank {} cannot send{}: {}", Name(signal.sequence),
                                                                peers_.rank, target, error->message)}));
  }
  outstanding_.fetch_sub(1, std::memory_order_release);
}

void ProxiedChannel::FinishIfComplete() {
  if (left_[(arrived_ - 1) & 1] < arrived_ - 1) return;
  host_line_.SetDone(arrived_);
}

void ProxiedChannel::ExpectAlarm() {
  const std::lock_guard lock(error_mutex_);
  if (error_) return;  // Stop, which cancels it, comes after the error, or has come
  // Where this is refused the group ends, and waits with it; a rank that hears no alarm has its deadlines.
  outstanding_.fetch_add(1, std::memory_order_release);
  const Status status = group_->ExpectImmediate(
      peers_.Immediate(peers_.rank, index_, ChannelImmediate::kAlarm), 1,
      Deadline::After(group_->clock(), config_.timeout_us),
      WorkerCallback{[](void* context, const Error* error) { static_cast<ProxiedChannel*>(context)->OnAlarm(error); },
                     this});
  if (!status) outstanding_.fetch_sub(1, std::memory_order_release);
}

void ProxiedChannel::OnAlarm(const Error* error) {
  if (error == nullptr) {
    alarmed_ = true;
    // Some may hear of it from this rank only, which perhaps has all that it waits for.
    const std::lock_guard lock(error_mutex_);
    if (const auto notice = notices_.FirstNotice(); notice && !error_) Tell(*notice);
  }
  if (error == nullptr || error->code == ErrorCode::kDeadlineExceeded) ExpectAlarm();
  outstanding_.fetch_sub(1, std::memory_order_release);
}

ProxiedChannel::Failure ProxiedChannel::FailureOf(Error error) const {
  FailureNotice told{peers_.rank, error.code, error.message};
  return {std::move(error), std::move(told)};
}

ProxiedChannel::Failure ProxiedChannel::FailureOf(const NoticeBoard::Departure& departure) const {
  Failure failure = FailureOf(Error{departure.code, fmt::format("moe (channel {}): rank {} cannot go on without {}",
                                                                index_, peers_.rank, departure.words)});
  if (departure.notice) failure.told = *departure.notice;
  return failure;
}

std::optional<ProxiedChannel::Failure> ProxiedChannel::FirstDeparture() const {
  const auto departure = notices_.FirstDeparture([](const NoticeBoard::Departure&, int32_t) { return true; });
  return departure ? std::optional(FailureOf(*departure)) : std::nullopt;
}

// Kernels cannot know that a rank is gone. Nobody has to wait until the deadline for that.
void ProxiedChannel::LookForDepartures() {
  if (!rank_has_departed_ && !FindDeparture()) return;
  // For those the host waits. Whoever waits for a rank of its node says so when it has seen the word.
  if (entries_ > 0 && posted_ > arrived_) Refuse(*departure_);
}

bool ProxiedChannel::FindDeparture() {
  const uint64_t losses = group_->peer_losses();
  const bool alarmed = std::exchange(alarmed_, false);
  if (losses != losses_seen_ || alarmed) {
    losses_seen_ = losses;
    departing_ = FirstDeparture();
    if (departing_ && departed_since_ns_ == 0) departed_since_ns_ = group_->clock().NowNs();
  }
  if (!departing_ || group_->clock().NowNs() - departed_since_ns_ < config_.LossGraceUs() * 1000) return false;
  // No error yet: a rank that ends as it should has sent all that anybody waits for, and kernels that find it there do
  // not look at the word.
  {
    const std::lock_guard lock(error_mutex_);
    departure_ = departing_;
  }
  rank_has_departed_ = true;
  host_line_.SetStop();
  return true;
}

void ProxiedChannel::Refuse(const Failure& failure) {
  {
    const std::lock_guard lock(error_mutex_);
    if (!error_) {
      error_ = failure.error;
      visible_error_.store(&*error_, std::memory_order_release);
      Tell(failure.told);
    }
  }
  // Last: whoever asks once kernels have left finds the error.
  host_line_.SetStop();
}

void ProxiedChannel::Tell(const FailureNotice& notice) {
  // The context ends, or the engine, and its peers hear of that.
  if (notice.code == ErrorCode::kCancelled || config_.PresentRanks() == 1) return;
  outstanding_.fetch_add(1, std::memory_order_release);
  const auto sent = [](void* context, const Error*) {
    static_cast<ProxiedChannel*>(context)->outstanding_.fetch_sub(1, std::memory_order_release);
  };
  if (!notices_.Tell(notice, WorkerCallback{sent, this})) outstanding_.fetch_sub(1, std::memory_order_release);
}

void ProxiedChannel::Stop(const Failure& failure) {
  Refuse(failure);
  group_->CancelExpectation(peers_.Immediate(peers_.rank, index_, ChannelImmediate::kAlarm));
  for (const ChannelImmediate which : {ChannelImmediate::kEvenExchange, ChannelImmediate::kOddExchange}) {
    if (entries_ > 0) group_->CancelExpectation(peers_.Immediate(peers_.rank, index_, which));
  }
}

void ProxiedChannel::Close() {
  Stop(FailureOf(Error{ErrorCode::kCancelled, "the expert-parallel context was closed"}));
  const std::lock_guard lock(error_mutex_);
  notices_.Withdraw();
}

std::optional<Error> ProxiedChannel::TakeRefusal() {
  const std::lock_guard lock(error_mutex_);
  // Acquires what the device has released.
  const int64_t refusals = std::atomic_ref(words_.signals->refused.count).load(std::memory_order_acquire);
  if (refusals == refusals_seen_) return {};
  refusals_seen_ = refusals;
  return Error{ErrorCode::kFailedPrecondition,
               fmt::format("{}: rank {} was to end a call that was not started here, or has been done already. Its "
                           "results are NaN; the channel goes on",
                           Name(words_.signals->refused.ticket), peers_.rank)};
}

std::string ProxiedChannel::Name(int64_t sequence) const {
  return fmt::format("moe (channel {}, exchange {})", index_, sequence);
}

std::string ProxiedChannel::MissingRanks() const {
  std::string ranks;
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == peers_.rank || config_.IsAbsent(rank) || words_.missing[rank] == 0) continue;
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return ranks.empty() ? "any rank to tell that its message is complete" : "rank(s) " + ranks;
}

ProxiedChannel::Failure ProxiedChannel::FailureOfDevice() {
  const auto& line = words_.signals->error;
  if (line.error != SignalError::kStopped) return FailureOf(ErrorOfDevice());
  // The rank that it waited for says more than another one that is gone, too.
  const auto source = static_cast<int32_t>(line.source);
  const bool is_peer = source != peers_.rank && source >= 0 && source < config_.layout.shape.ranks;
  const auto departure = is_peer && !config_.IsAbsent(source) ? notices_.DepartureOf(source) : std::nullopt;
  if (departure) return FailureOf(*departure);
  const std::lock_guard lock(error_mutex_);
  return departure_ ? *departure_ : FailureOf(ErrorOfDevice());
}

Error ProxiedChannel::ErrorOfDevice() const {
  const auto& line = words_.signals->error;
  const std::string name = Name(line.sequence);
  const int32_t rank = peers_.rank;
  switch (line.error) {
    case SignalError::kDeadline:
      return {ErrorCode::kDeadlineExceeded,
              fmt::format("{}: rank {} waited {} s for {}", name, rank, config_.timeout_us / 1e6, MissingRanks())};
    case SignalError::kMessage:
      return {ErrorCode::kFailedPrecondition,
              fmt::format("{}: rank {} cannot use the message of rank {}: {}. Do all ranks run the same program with "
                          "the same shapes, in the same order?",
                          name, rank, line.source, TextOf(static_cast<kernels::MessageFault>(line.detail)))};
    case SignalError::kCapacity:
      return {ErrorCode::kResourceExhausted,
              fmt::format("{}: {} rows were routed to the experts of rank {}, and capacity={} rows. Raise capacity, or "
                          "pass on_overflow=\"drop\".",
                          name, line.detail, line.source, config_.layout.shape.capacity)};
    case SignalError::kElementCapacity:
      return {ErrorCode::kResourceExhausted,
              fmt::format("{}: element {} of a batch has {} rows more for rank {} than capacity={}. Raise capacity, or "
                          "pass on_overflow=\"drop\".",
                          name, line.source, line.detail, rank, config_.layout.shape.capacity)};
    case SignalError::kRank:
      return {ErrorCode::kInvalidArgument,
              fmt::format("{}: called on rank {} of the axis, and this device is rank {} of the context: use the mesh "
                          "that the Fabric was made with",
                          name, line.detail, rank)};
    case SignalError::kNotDone:
      return {
          ErrorCode::kFailedPrecondition,
          fmt::format("{}: rank {} began an exchange before the one before it was done: calls in flight at once need "
                      "channels of their own",
                      name, rank)};
    case SignalError::kNotBegun:  // no failure: see TakeRefusal
    case SignalError::kStopped:
    case SignalError::kNone:
      break;
  }
  return {ErrorCode::kCancelled, fmt::format("{}: rank {} was stopped while it waited", name, rank)};
}

}  // namespace jax_fabric::moe
