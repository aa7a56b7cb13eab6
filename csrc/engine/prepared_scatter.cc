#include "csrc/engine/prepared_scatter.h"

#include <algorithm>
#include <limits>

namespace jax_fabric {
namespace {

class PreparedScatterHandle final : public PreparedScatter {
 public:
  explicit PreparedScatterHandle(ScatterState* state) : state_(state) {}
  ~PreparedScatterHandle() override { state_->Abandon(); }
  bool idle() const override { return state_->idle(); }
  void SetLength(size_t entry, uint64_t length) override { state_->SetLength(entry, length); }
  Status Post(Deadline deadline, WorkerCallback callback, const std::optional<WriteGrant>& grant) override {
    return state_->Post(deadline, callback, grant);
  }

 private:
  ScatterState* const state_;
};

uint64_t RoomOf(const ScatterEntry& entry) {
  const uint64_t target_room = entry.target->length - entry.target_offset;
  if (entry.source == nullptr) return 0;
  const uint64_t source_offset =
      reinterpret_cast<uint64_t>(entry.source) - reinterpret_cast<uint64_t>(entry.source_memory.address);
  return std::min(target_room, entry.source_memory.length - source_offset);
}

}  // namespace

Result<std::unique_ptr<PreparedScatter>> ScatterState::Prepare(GroupDriver& driver, const RequestPlanner& planner,
                                                               const MessagePool& messages,
                                                               std::span<const ScatterEntry> entries) {
  auto* state = new ScatterState(driver, messages);
  auto handle = std::make_unique<PreparedScatterHandle>(state);  // frees the state on the error paths below
  for (size_t i = 0; i < entries.size(); ++i) {
    JF_ASSIGN_OR_RETURN(const ShardedOperation::Write plan, planner.Plan(entries[i], i));
    state->operation_.Add(plan);
    state->bounds_.push_back({entries[i].length, std::min(RoomOf(entries[i]), state->operation_.LongestOf(i))});
  }
  const auto like_first = [&](const ScatterEntry& entry) {
    return entry.peer == entries[0].peer && entry.immediate == entries[0].immediate;
  };
  if (!entries.empty() && std::all_of(entries.begin(), entries.end(), like_first)) {
    state->common_immediate_ = entries[0].immediate;
  }
  return handle;
}

void ScatterState::SetLength(size_t entry, uint64_t length) {
  if (entry >= bounds_.size()) {
    too_long_ = bounds_.size() + 1;  // Post refuses from now on: the caller counts its entries wrongly
    return;
  }
  Bounds& bounds = bounds_[entry];
  too_long_ -= bounds.length > bounds.longest;
  bounds.length = length;
  too_long_ += length > bounds.longest;
  operation_.SetLength(entry, length);
}

Status ScatterState::CheckLengths() const {
  for (size_t i = 0; i < bounds_.size(); ++i) {
    if (bounds_[i].length <= bounds_[i].longest) continue;
    return MakeError(ErrorCode::kOutOfRange,
                     "group '{}': scatter: entry {} is {} bytes long; its source, target and declared max_length have "
                     "room for {}",
                     driver_.name(), i, bounds_[i].length, bounds_[i].longest);
  }
  return MakeError(ErrorCode::kOutOfRange,
                   "group '{}': scatter: SetLength of an entry that does not exist; there are {}", driver_.name(),
                   bounds_.size());
}

Status ScatterState::CheckGrant(const WriteGrant& grant) const {
  if (!messages_.receiving()) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "group '{}': scatter: grants are taken back by messages: call ReceiveMessages first",
                     driver_.name());
  }
  if (common_immediate_ == grant.immediate) return {};
  return MakeError(
      ErrorCode::kInvalidArgument,
      "group '{}': scatter under grant {}: every write has to go to the peer that gave it and to bring its "
      "immediate, {}",
      driver_.name(), grant.id, grant.immediate);
}

Status ScatterState::Post(Deadline deadline, WorkerCallback callback, const std::optional<WriteGrant>& grant) {
  uint32_t idle = kIdle;
  // Acquire, partner: Release.
  if (!state_.compare_exchange_strong(idle, kBusy, std::memory_order_acquire, std::memory_order_relaxed)) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "group '{}': scatter: the post before has not ended, or its writes are still in flight after its "
                     "deadline; prepare one scatter for each post at a time",
                     driver_.name());
  }
  Status status;
  if (too_long_ > 0) status = CheckLengths();
  if (status.has_value() && grant) status = CheckGrant(*grant);
  if (!driver_.accepting()) {
    status = MakeError(ErrorCode::kCancelled, "group '{}': scatter: the engine is closed", driver_.name());
  }
  if (!status.has_value()) {
    Release();
    return status;
  }
  callback_ = callback;
  operation_.Prepare(this, deadline, grant);
  driver_.Submit(&operation_);
  return {};
}

void ScatterState::OnSettled(const Error* error, Settlement settlement) {
  if (settlement == Settlement::kDrained) return Release();
  const WorkerCallback callback = callback_;
  // First, because the callback may post again or destroy the scatter.
  if (settlement == Settlement::kDone) Release();
  callback(error);
}

void ScatterState::Release() {
  uint32_t busy = kBusy;
  // Release, partner: Post. Acquire on failure, partner: Abandon.
  if (state_.compare_exchange_strong(busy, kIdle, std::memory_order_release, std::memory_order_acquire)) return;
  driver_.abandoned().Remove(this);
  delete this;
}

void ScatterState::Abandon() {
  // Before the exchange, after which the worker may delete the object.
  driver_.abandoned().Add(this);
  // Acquire: the worker's last use of the object; release: the handle's last use, for whoever deletes it.
  if (state_.exchange(kAbandoned, std::memory_order_acq_rel) != kIdle) return;
  driver_.abandoned().Remove(this);
  delete this;
}

}  // namespace jax_fabric
