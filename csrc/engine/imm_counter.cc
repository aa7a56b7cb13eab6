#include "csrc/engine/imm_counter.h"

#include <utility>

namespace jax_fabric {

ImmCounter::ImmCounter(std::string group_name) : group_name_(std::move(group_name)) {}

Result<uint32_t> ImmCounter::TakeRange(uint32_t count) {
  if (auto same_length = released_.find(count); same_length != released_.end()) {
    const uint32_t first = same_length->second;
    released_.erase(same_length);
    return first;
  }
  if (count == 0 || count > slots_.kCapacity - next_id_) {
    return MakeError(ErrorCode::kResourceExhausted,
                     "group '{}': {} immediates asked for; 1 to {} are left of {}; release ranges that are done with",
                     group_name_, count, slots_.kCapacity - next_id_, slots_.kCapacity);
  }
  const uint32_t first = next_id_;
  next_id_ += count;
  slots_.Reserve(next_id_);
  return first;
}

Result<uint32_t> ImmCounter::Allocate(uint32_t count) {
  std::lock_guard lock(mutex_);
  JF_ASSIGN_OR_RETURN(const uint32_t first, TakeRange(count));
  for (uint32_t id = first; id < first + count; ++id) {
    Slot& slot = *slots_.Find(id);
    slot.id = id;
    slot.counter = this;
    slot.arm.slot = slot.cancel.slot = &slot;
    slot.generation.store(slot.generation.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    slot.state.store(kIdle, std::memory_order_release);  // partner: Owned
  }
  return first;
}

Status ImmCounter::Release(uint32_t first, uint32_t count) {
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < count; ++i) {
    Slot* slot = Owned(first + i);
    uint32_t idle = kIdle;
    if (slot != nullptr && slot->state.compare_exchange_strong(idle, kFree, std::memory_order_acq_rel)) continue;
    for (uint32_t j = 0; j < i; ++j) slots_.Find(first + j)->state.store(kIdle, std::memory_order_release);
    return MakeError(ErrorCode::kFailedPrecondition, "group '{}': immediate {} {}; nothing was released", group_name_,
                     first + i, slot == nullptr ? "was not handed out" : "is still expected: cancel it first");
  }
  released_.emplace(count, first);
  return {};
}

ImmCounter::Slot* ImmCounter::Owned(uint32_t immediate) const {
  Slot* slot = slots_.Find(immediate);
  // Acquire, partner: Allocate.
  return slot == nullptr || slot->state.load(std::memory_order_acquire) == kFree ? nullptr : slot;
}

Result<DriverRequest*> ImmCounter::PrepareExpectation(uint32_t immediate, uint32_t count, Deadline deadline,
                                                      WorkerCallback callback, std::optional<uint64_t> losses_seen) {
  Slot* slot = Owned(immediate);
  if (slot == nullptr) {
    return MakeError(ErrorCode::kNotFound, "group '{}': immediate {} was not handed out by AllocateImmediates",
                     group_name_, immediate);
  }
  uint32_t idle = kIdle;
  // Acquire, partner: the release in Finish.
  if (!slot->state.compare_exchange_strong(idle, kClaimed, std::memory_order_acquire, std::memory_order_relaxed)) {
    return MakeError(ErrorCode::kAlreadyExists,
                     "group '{}': immediate {} is expected already; wait for that callback, or use another id",
                     group_name_, immediate);
  }
  slot->expected = count;
  slot->deadline = deadline;
  slot->callback = callback;
  slot->losses_seen = losses_seen;
  return &slot->arm;
}

DriverRequest* ImmCounter::PrepareCancellation(uint32_t immediate) {
  Slot* slot = Owned(immediate);
  if (slot == nullptr) return nullptr;
  // Acquire and release: the request object passes from the worker to this thread and back.
  return slot->cancelling.exchange(true, std::memory_order_acq_rel) ? nullptr : &slot->cancel;
}

Status ImmCounter::Expect(uint32_t immediate, uint32_t count, Deadline deadline, WorkerCallback callback,
                          std::optional<uint64_t> losses_seen) {
  JF_RETURN_IF_ERROR(PrepareExpectation(immediate, count, deadline, callback, losses_seen));
  Arm(*slots_.Find(immediate));
  return {};
}

void ImmCounter::ArmRequest::Start(GroupDriver&) { slot->counter->Arm(*slot); }

void ImmCounter::CancelRequest::Start(GroupDriver&) {
  slot->cancelling.store(false, std::memory_order_release);  // partner: PrepareCancellation
  slot->counter->Cancel(*slot);
}

void ImmCounter::ForgetFormerOwner(Slot& slot) {
  const uint32_t generation = slot.generation.load(std::memory_order_acquire);  // partner: Allocate
  if (slot.counted_generation == generation) return;
  slot.counted_generation = generation;
  slot.unconsumed = 0;
}

void ImmCounter::Arm(Slot& slot) {
  ForgetFormerOwner(slot);
  slot.state.store(kArmed, std::memory_order_relaxed);  // others only tell it from kIdle and kFree
  if (closed_) return FinishCancelled(slot);
  if (slot.unconsumed >= slot.expected) {
    slot.unconsumed -= slot.expected;
    return Finish(slot, nullptr);
  }
  if (slot.losses_seen && *slot.losses_seen != peer_losses_.load(std::memory_order_relaxed)) {
    return FinishAfterLoss(slot);  // while it was on its way
  }
  (slot.losses_seen ? ended_by_loss_ : deadlines_).Insert(&slot, slot.deadline.at_ns);
}

void ImmCounter::CountPeerLoss() {
  peer_losses_.fetch_add(1, std::memory_order_release);  // partner: peer_losses
  ended_by_loss_.ExpireAll([this](DeadlineNode* node) { FinishAfterLoss(*static_cast<Slot*>(node)); });
}

void ImmCounter::Count(uint32_t immediate, uint32_t times) {
  Slot* slot = Owned(immediate);
  if (slot == nullptr) {
    strays_.fetch_add(times, std::memory_order_relaxed);
    return;
  }
  ForgetFormerOwner(*slot);
  slot->unconsumed += times;
  slot->seen.store(slot->seen.load(std::memory_order_relaxed) + times, std::memory_order_relaxed);
  if (slot->state.load(std::memory_order_relaxed) != kArmed) return;  // only this thread makes it kArmed
  if (slot->unconsumed < slot->expected) return;
  slot->unconsumed -= slot->expected;
  Finish(*slot, nullptr);
}

void ImmCounter::Finish(Slot& slot, const Error* error) {
  DeadlineList::Remove(&slot);
  const WorkerCallback callback = slot.callback;
  // Before the callback, which may expect the same id again. Release, partner: PrepareExpectation.
  slot.state.store(kIdle, std::memory_order_release);
  callback(error);
}

void ImmCounter::FinishCancelled(Slot& slot) {
  const Error error{ErrorCode::kCancelled,
                    fmt::format("group '{}': the expectation of immediate {} was cancelled after {} of {}", group_name_,
                                slot.id, slot.unconsumed, slot.expected)};
  Finish(slot, &error);
}

void ImmCounter::FinishAfterLoss(Slot& slot) {
  const Error error{ErrorCode::kUnavailable,
                    fmt::format("group '{}': a peer was lost while immediate {} was expected, after {} of {}",
                                group_name_, slot.id, slot.unconsumed, slot.expected)};
  Finish(slot, &error);
}

void ImmCounter::Cancel(Slot& slot) {
  if (slot.state.load(std::memory_order_relaxed) == kArmed) FinishCancelled(slot);
}

int ImmCounter::Expire(int64_t now_ns) {
  const auto expire = [this](DeadlineNode* node) {
    Slot& slot = *static_cast<Slot*>(node);
    const Error error{ErrorCode::kDeadlineExceeded,
                      fmt::format("group '{}': immediate {} came {} times of {} before the deadline", group_name_,
                                  slot.id, slot.unconsumed, slot.expected)};
    Finish(slot, &error);
  };
  return deadlines_.Expire(now_ns, expire) + ended_by_loss_.Expire(now_ns, expire);
}

void ImmCounter::Close() {
  closed_ = true;
  for (DeadlineList* list : {&deadlines_, &ended_by_loss_}) {
    list->ExpireAll([this](DeadlineNode* node) { FinishCancelled(*static_cast<Slot*>(node)); });
  }
}

void ImmCounter::Abandon(uint32_t immediate) {
  Slot* slot = Owned(immediate);
  if (slot == nullptr) return;
  Cancel(*slot);
  slot->unconsumed = 0;
}

uint64_t ImmCounter::seen(uint32_t immediate) const {
  const Slot* slot = Owned(immediate);
  return slot == nullptr ? 0 : slot->seen.load(std::memory_order_relaxed);
}

uint64_t ImmCounter::unconsumed(uint32_t immediate) const {
  const Slot* slot = Owned(immediate);
  return slot == nullptr ? 0 : slot->unconsumed;
}

}  // namespace jax_fabric
