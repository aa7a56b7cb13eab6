#include "csrc/moe/channel.h"

#include <algorithm>
#include <utility>

#include "csrc/kernels/empty_message.h"
#include "csrc/moe/exchange_name.h"
#include "csrc/moe/mutants.h"

namespace jax_fabric::moe {

Result<std::unique_ptr<Channel>> Channel::Create(int32_t index, const MoeConfig& config, const PeerTable& peers,
                                                 DomainGroup* group, Strand* strand) {
  std::unique_ptr<Channel> channel(new Channel(index, config, peers, group, strand));
  JF_RETURN_IF_ERROR(channel->Prepare());
  return channel;
}

Channel::Channel(int32_t index, const MoeConfig& config, const PeerTable& peers, DomainGroup* group, Strand* strand)
    : index_(index),
      config_(config),
      leader_(config.Leader()),
      peers_(peers),
      group_(group),
      strand_(strand),
      losses_looked_at_(group->peer_losses()),
      identifier_(peers.one_process),
      send_slots_(config.layout.shape.ranks),
      receive_slots_(config.layout.shape.ranks),
      message_bytes_(config.layout.shape.ranks),
      absent_slot_(config.PresentRanks() == config.layout.shape.ranks ? 0 : config.layout.SlotBytes()),
      notices_(index, config, peers, group) {}

Channel::~Channel() = default;

Status Channel::Prepare() {
  const auto connect = [this](Signal& signal, void (Channel::*handler)(Signal&)) {
    signal.channel = this;
    signal.handler = handler;
    signal.task.context = &signal;
    signal.task.run = [](void* context) {
      auto* self = static_cast<Signal*>(context);
      self->outstanding = false;
      (self->channel->*self->handler)(*self);
    };
  };
  connect(announcement_arrival_, &Channel::OnAnnouncement);
  connect(timer_, &Channel::OnTimer);
  connect(notice_sent_, &Channel::OnNoticeSent);
  for (int parity = 0; parity < 2; ++parity) {
    connect(arrivals_[parity], &Channel::OnArrival);
    connect(sends_[parity], &Channel::OnSent);
    JF_ASSIGN_OR_RETURN(sends_[parity].scatter, PrepareExchange(parity));
  }
  for (int entry = 0; entry < AnnouncementRing::kEntries; ++entry) {
    connect(announcements_[entry], &Channel::OnAnnounced);
    if (!leads()) continue;
    JF_ASSIGN_OR_RETURN(announcements_[entry].scatter, PrepareAnnouncement(entry));
  }
  return {};
}

Result<std::unique_ptr<PreparedScatter>> Channel::PrepareExchange(int parity) {
  const int32_t ranks = config_.layout.shape.ranks;
  const int32_t me = peers_.rank;
  std::vector<ScatterEntry> entries;
  // Each rank begins with its neighbour, so that not everybody writes to rank 0 first.
  for (int32_t i = 1; i < ranks; ++i) {
    const int32_t rank = (me + i) % ranks;
    if (config_.IsAbsent(rank)) continue;
    const Peer& peer = peers_.peers[rank];
    ScatterEntry entry;
    entry.peer = peer.handle;
    if (peer.mapped == nullptr) {
      entry.source_memory = peers_.staging_memory;
      entry.source = StagingSlot(rank, parity);
      entry.length = config_.layout.SlotBytes();
    }
    entry.target = &peer.memory;
    entry.target_offset = config_.ChannelOffset(index_) + config_.layout.SlotOffset(me, parity);
    entry.immediate =
        peers_.Immediate(rank, index_, ArrivalImmediate(Mutated(Mutant::kOddImmediateNeverSent) ? 0 : parity));
    entries.push_back(entry);
  }
  return group_->PrepareScatter(entries);
}

Result<std::unique_ptr<PreparedScatter>> Channel::PrepareAnnouncement(int entry_index) {
  const int64_t offset = config_.RingOffset(index_) + AnnouncementRing::EntryOffset(entry_index);
  std::vector<ScatterEntry> entries;
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == leader_ || config_.IsAbsent(rank)) continue;
    const Peer& peer = peers_.peers[rank];
    ScatterEntry entry;
    entry.peer = peer.handle;
    entry.source_memory = peers_.own_memory;
    // The leader reads no announcements: its own ring is the source of those that travel.
    entry.source = static_cast<std::byte*>(peers_.own_memory.address) + offset;
    entry.target = &peer.memory;
    entry.target_offset = offset;
    entry.length = peer.mapped == nullptr ? AnnouncementRing::kEntryBytes : 0;
    entry.immediate = peers_.Immediate(rank, index_, ChannelImmediate::kAnnouncement);
    entries.push_back(entry);
  }
  return group_->PrepareScatter(entries);
}

WorkerCallback Channel::CallbackFor(Signal* signal) {
  signal->outstanding = true;
  signal->error.reset();
  return WorkerCallback{[](void* context, const Error* error) {
                          auto* self = static_cast<Signal*>(context);
                          if (error != nullptr) self->error = *error;
                          self->channel->strand_->Post(&self->task);
                        },
                        signal};
}

void Channel::Submit(ExchangeOperation* operation) {
  operation->channel_ = this;
  operation->task_.context = operation;
  operation->task_.run = [](void* context) {
    auto* self = static_cast<ExchangeOperation*>(context);
    self->channel_->OnSubmit(self);
  };
  strand_->PostOrRun(&operation->task_);
}

void Channel::Attach(ResultRequest* request) {
  request->channel_ = this;
  request->task_.context = request;
  request->task_.run = [](void* context) {
    auto* self = static_cast<ResultRequest*>(context);
    self->channel_->OnAttach(self);
  };
  strand_->PostOrRun(&request->task_);
}

void Channel::OnAttach(ResultRequest* request) {
  if (poison_) return request->End(&*poison_);
  if (current_ != nullptr && static_cast<int32_t>(current_->sequence_) == request->sequence() &&
      current_->Attach(*request)) {
    // What comes now is for both halves to wait for; what lay between them was the program's own.
    deadline_ = Deadline::After(group_->clock(), config_.timeout_us);
    return Advance();
  }
  // Nothing has been lost, and nothing is waiting: the channel can go on.
  const Error error{ErrorCode::kFailedPrecondition,
                    fmt::format("moe {} (channel {}, rank {}): no call {} was started here that has not been done: "
                                "call done once, with what start returned, on the same channel",
                                NameOf(request->kind()), index_, peers_.rank, request->sequence())};
  request->End(&error);
}

void Channel::Close() {
  Poison(Error{ErrorCode::kCancelled, "the expert-parallel context was closed"});
  notices_.Withdraw();
}

void Channel::Poison(const Error& error) {
  if (poison_) return;
  poison_ = error;
  visible_poison_.store(&*poison_, std::memory_order_release);
  while (!unnumbered_.empty()) unnumbered_.TakeFront()->Finish(&*poison_);
  while (!numbered_.empty()) numbered_.TakeFront()->Finish(&*poison_);
  if (current_ != nullptr) std::exchange(current_, nullptr)->Finish(&*poison_);
  const auto cancel = [this](const Signal& signal, ChannelImmediate which) {
    if (signal.outstanding) group_->CancelExpectation(peers_.Immediate(peers_.rank, index_, which));
  };
  cancel(arrivals_[0], ChannelImmediate::kEvenExchange);
  cancel(arrivals_[1], ChannelImmediate::kOddExchange);
  cancel(announcement_arrival_, ChannelImmediate::kAnnouncement);
  cancel(timer_, ChannelImmediate::kAlarm);
}

bool Channel::Quiet() const {
  const auto quiet = [](const Signal& signal) { return !signal.outstanding; };
  return std::all_of(arrivals_.begin(), arrivals_.end(), quiet) && std::all_of(sends_.begin(), sends_.end(), quiet) &&
         std::all_of(announcements_.begin(), announcements_.end(), quiet) && quiet(announcement_arrival_) &&
         quiet(timer_) && quiet(notice_sent_);
}

// --- numbers

void Channel::OnSubmit(ExchangeOperation* operation) {
  if (poison_) return operation->Finish(&*poison_);
  const Result<uint64_t> identity = identifier_.Identify(operation->site_, operation->run_);
  if (!identity) {
    GiveUp(Error{identity.error().code, fmt::format("moe {} (channel {}, rank {}): {}", NameOf(operation->kind_),
                                                    index_, peers_.rank, identity.error().message)});
    return operation->Finish(&*poison_);
  }
  operation->identity_ = *identity;
  operation->deadline_ = Deadline::After(group_->clock(), config_.timeout_us);
  unnumbered_.Add(operation);
  NumberOperations();
  ArmTimer();
}

void Channel::NumberOperations() {
  if (leads()) {
    Issue();
  } else {
    Claim();
    ExpectAnnouncement();
  }
  Advance();
}

void Channel::Issue() {
  while (!poison_ && !unnumbered_.empty()) {
    // The entry's previous announcement must have left this rank before its memory is used again.
    const bool left = !announcements_[(tickets_.last_known() + 1) % AnnouncementRing::kEntries].outstanding;
    if (!left && !Mutated(Mutant::kReuseAnnouncementBeforeItLeft)) return;
    const int64_t through = Mutated(Mutant::kIssueWithoutRoom) ? tickets_.last_known() : finished_;
    const auto sequence = tickets_.Issue(unnumbered_.front()->identity_, through);
    if (!sequence) return;
    ExchangeOperation* operation = unnumbered_.TakeFront();
    operation->sequence_ = *sequence;
    numbered_.Add(operation);
    Announce(*sequence);
  }
}

void Channel::Announce(int64_t sequence) {
  if (alone()) return;
  const Announcement announcement{sequence, tickets_.IdentityOf(sequence)};
  const int64_t offset = config_.RingOffset(index_);
  for (const Peer& peer : peers_.peers) {
    if (peer.mapped != nullptr) AnnouncementRing(peer.mapped + offset).Write(announcement);
  }
  Signal& signal = announcements_[sequence % AnnouncementRing::kEntries];
  const Deadline deadline = Deadline::After(group_->clock(), config_.timeout_us);
  if (auto posted = signal.scatter->Post(deadline, CallbackFor(&signal)); !posted) {
    signal.outstanding = false;
    GiveUpSend(posted.error());
  }
}

void Channel::OnAnnounced(Signal& signal) {
  if (signal.error) GiveUpSend(*signal.error);
  NumberOperations();
}

void Channel::Claim() {
  tickets_.Read(AnnouncementRing(static_cast<std::byte*>(peers_.own_memory.address) + config_.RingOffset(index_)));
  const auto claim = [this](ExchangeOperation& operation) {
    const uint64_t next = Mutated(Mutant::kClaimAnyNumber) ? tickets_.IdentityOf(finished_ + 1) : operation.identity_;
    const auto sequence = tickets_.Claim(next);
    if (sequence) operation.sequence_ = *sequence;
    return sequence.has_value();
  };
  while (auto* operation = unnumbered_.Take(claim)) numbered_.Add(operation);
}

void Channel::ExpectAnnouncement() {
  if (poison_ || announcement_arrival_.outstanding || unnumbered_.empty()) return;
  // Announcements already read from the ring have immediates that are still to be counted. At least one more: those
  // counted may belong to later entries that overtook the one that is missing.
  const int64_t count = std::max<int64_t>(1, tickets_.last_known() + 1 - announcement_immediates_used_);
  announcement_immediates_used_ += count;
  const uint32_t immediate = peers_.Immediate(peers_.rank, index_, ChannelImmediate::kAnnouncement);
  const auto expected = group_->ExpectImmediate(immediate, static_cast<uint32_t>(count),
                                                Deadline::After(group_->clock(), config_.timeout_us),
                                                CallbackFor(&announcement_arrival_));
  if (!expected) {
    announcement_arrival_.outstanding = false;
    GiveUp(expected.error());
  }
}

void Channel::OnAnnouncement(Signal& signal) {
  if (poison_) return;
  if (!signal.error) return NumberOperations();
  GiveUp(NameLeader(*signal.error));
}

// --- exchanges

void Channel::Advance() {
  while (!poison_ && (StartNext() || FinishCurrent())) {
    // A finished exchange makes room for a number.
    if (leads()) Issue();
  }
  // A lost rank may have done its part in the exchange that was in flight, and has none in what comes next.
  if (has_lost_rank_ || group_->peer_losses() != losses_looked_at_) GiveUpIfPeerIsGone();
}

bool Channel::StartNext() {
  const int64_t sequence = exchanges_ + 1;
  // The staging buffers of this parity may still be on their way although every peer has answered: nothing is inferred
  // from another arrival.
  const bool left = !sends_[sequence & 1].outstanding;
  if (packed_ || (!left && !Mutated(Mutant::kReuseStagingBeforeItLeft))) return false;
  if (current_ == nullptr && !TakeNext(finished_ + 1)) return false;

  packed_ = true;
  arrived_ = alone() || Mutated(Mutant::kUnpackWithoutWaiting);
  const int64_t parity = Mutated(Mutant::kAlwaysEvenSlots) ? 0 : sequence & 1;
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    send_slots_[rank] = SendSlot(rank, parity);
  }
  current_->Pack(round_, StampOf(sequence, signature_), send_slots_.data(), message_bytes_.data());
  if (alone()) return true;
  const Status sent = Send();
  if (!sent) GiveUpSend(sent.error());
  return sent.has_value();
}

bool Channel::TakeNext(int64_t number) {
  current_ = numbered_.Take([number](const ExchangeOperation& each) {
    return each.sequence_ == number || Mutated(Mutant::kRunInOrderOfSubmission);
  });
  if (current_ == nullptr) return false;
  round_ = 0;
  signature_ = current_->signature_ ^ current_->identity_;
  deadline_ = Deadline::After(group_->clock(), config_.timeout_us);
  return true;
}

Status Channel::Send() {
  const int32_t ranks = config_.layout.shape.ranks;
  const int parity = (exchanges_ + 1) & 1;
  Signal& send = sends_[parity];
  size_t entry = 0;
  for (int32_t i = 1; i < ranks; ++i) {
    const int32_t rank = (peers_.rank + i) % ranks;
    if (config_.IsAbsent(rank)) continue;
    if (peers_.peers[rank].mapped == nullptr) send.scatter->SetLength(entry, message_bytes_[rank]);
    ++entry;
  }
  Status status = send.scatter->Post(deadline_, CallbackFor(&send));
  if (!status) {
    send.outstanding = false;
    return status;
  }
  Signal& arrival = arrivals_[parity];
  const uint32_t count = config_.PresentRanks() - 1 + Mutated(Mutant::kExpectOneImmediateMore) -
                         (ranks > 2 && Mutated(Mutant::kExpectOneImmediateLess));
  status = group_->ExpectImmediate(peers_.Immediate(peers_.rank, index_, ArrivalImmediate(parity)), count, deadline_,
                                   CallbackFor(&arrival));
  if (!status) arrival.outstanding = false;
  return status;
}

bool Channel::FinishCurrent() {
  if (!packed_ || !arrived_ || !current_->can_unpack()) return false;
  if (const Status status = UnpackCurrent(); !status) {
    GiveUp(status.error());
    return false;
  }
  packed_ = false;
  ++exchanges_;
  if (++round_ < current_->rounds() - Mutated(Mutant::kOneRoundLess)) return true;
  ++finished_;
  std::exchange(current_, nullptr)->Finish(nullptr);
  return true;
}

Status Channel::UnpackCurrent() {
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    receive_slots_[rank] = OwnSlot(rank, exchanges_ + 1 + Mutated(Mutant::kUnpackOtherParity));
    if (!config_.IsAbsent(rank)) continue;
    const kernels::MessageStamp stamp = StampOf(exchanges_ + 1, signature_);
    kernels::WriteEmptyMessage(config_.layout, current_->kind_, stamp, round_, absent_slot_.data());
    receive_slots_[rank] = absent_slot_.data();
  }
  JF_RETURN_IF_ERROR(CheckMessages(receive_slots_.data()));
  JF_RETURN_IF_ERROR(CheckCapacity(receive_slots_.data()));
  return current_->Unpack(round_, receive_slots_.data());
}

Status Channel::CheckMessages(const void* const* slots) const {
  kernels::MessageStamp stamp = StampOf(exchanges_ + 1, signature_);
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (config_.IsAbsent(rank)) continue;
    stamp.incarnation = peers_.peers[rank].incarnation;
    const char* const wrong = kernels::CheckMessage(config_.layout, slots[rank], current_->kind_, stamp, rank,
                                                    current_->RowsOf(round_, rank));
    if (wrong == nullptr) continue;
    return MakeError(ErrorCode::kFailedPrecondition,
                     "{}: rank {} cannot use the message of rank {}: {}. Do all ranks run the same program with the "
                     "same shapes, in the same order?",
                     NameOfCurrent(), peers_.rank, rank, wrong);
  }
  return {};
}

Status Channel::CheckCapacity(const void* const* slots) const {
  if (current_->kind_ != kernels::ExchangeKind::kDispatch || config_.drop_overflow || round_ > 0) return {};
  const int32_t ranks = config_.layout.shape.ranks;
  // Every source tells its counts for every rank: all ranks see an overflow and raise the same error.
  for (int32_t target = 0; target < ranks; ++target) {
    int64_t expert_rows = 0;
    for (int32_t source = 0; source < ranks; ++source) {
      const auto* counts = reinterpret_cast<const uint32_t*>(static_cast<const std::byte*>(slots[source]) +
                                                             config_.layout.CountsOffset());
      expert_rows += counts[ranks + target];
    }
    if (expert_rows <= config_.layout.shape.capacity * current_->elements()) continue;
    return MakeError(ErrorCode::kResourceExhausted,
                     "{}: {} rows were routed to the experts of rank {}, and capacity={} rows. Raise capacity, or "
                     "pass on_overflow=\"drop\".",
                     NameOfCurrent(), expert_rows, target, config_.layout.shape.capacity);
  }
  return {};
}

void Channel::OnArrival(Signal& signal) {
  if (poison_) return;
  if (signal.error) return GiveUp(NameAbsentRanks(*signal.error));
  arrived_ = true;
  Advance();
}

void Channel::OnSent(Signal& signal) {
  if (poison_) return;
  if (signal.error) return GiveUpSend(*signal.error);
  Advance();
}

void* Channel::SendSlot(int32_t rank, int64_t parity) {
  if (config_.IsAbsent(rank)) return absent_slot_.data();
  std::byte* const mapped = peers_.peers[rank].mapped;
  if (mapped == nullptr) return StagingSlot(rank, parity);
  return mapped + config_.ChannelOffset(index_) + config_.layout.SlotOffset(peers_.rank, parity);
}

void* Channel::StagingSlot(int32_t rank, int64_t sequence) const {
  return static_cast<std::byte*>(peers_.staging_memory.address) + config_.ChannelOffset(index_) +
         config_.layout.SlotOffset(rank, sequence);
}

const void* Channel::OwnSlot(int32_t source, int64_t sequence) const {
  return static_cast<const std::byte*>(peers_.own_memory.address) + config_.ChannelOffset(index_) +
         config_.layout.SlotOffset(source, sequence);
}

kernels::MessageStamp Channel::StampOf(int64_t sequence, uint64_t signature) const {
  kernels::MessageStamp stamp;
  stamp.incarnation = peers_.own_incarnation;
  stamp.signature = signature;
  stamp.sequence = sequence;
  stamp.channel = index_;
  stamp.membership_epoch = config_.membership_epoch;
  return stamp;
}

#ifdef JAX_FABRIC_MUTANTS
std::string Channel::DescribeState() const {
  std::string outstanding;
  const auto add = [&outstanding](const Signal& signal) { outstanding += signal.outstanding ? '1' : '0'; };
  for (const Signal& signal : arrivals_) add(signal);
  for (const Signal& signal : sends_) add(signal);
  for (const Signal& signal : announcements_) add(signal);
  add(announcement_arrival_);
  add(notice_sent_);
  return fmt::format("exchanges {} finished {} current {} round {} packed {} arrived {} known {} used {} {}{}; ",
                     exchanges_, finished_, current_ == nullptr ? 0 : current_->identity_, round_, packed_, arrived_,
                     tickets_.last_known(), announcement_immediates_used_, outstanding, poison_ ? " poisoned" : "");
}
#endif

}  // namespace jax_fabric::moe
