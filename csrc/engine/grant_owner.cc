#include "csrc/engine/grant_owner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "csrc/engine/grant_mutants.h"

namespace jax_fabric {
namespace {

// Between two times that the same is said: the messages of a fabric come through, most of the time.
constexpr int64_t kFirstPauseNs = 200'000;
constexpr int64_t kLongestPauseNs = 100'000'000;

Error Closed() { return Error{ErrorCode::kCancelled, "revoke: the engine is closed", {}, {}}; }

}  // namespace

void GrantOwner::Open(uint64_t id, PeerHandle writer, uint32_t immediate, uint64_t seen_before) {
  if (closed_) return;
  Grant& grant = grants_[id];
  grant.id = id;
  grant.writer = writer;
  grant.immediate = immediate;
  grant.seen_before = Mutated(GrantMutant::kCountArrivalsOfAllTimes) ? 0 : seen_before;
  last_opened_ = std::max(last_opened_, id);
}

void GrantOwner::Close(uint64_t id) {
  const auto found = grants_.find(id);
  if (found == grants_.end()) return;
  Grant& grant = found->second;
  if (std::erase(pursued_, id) > 0) Report(grant, nullptr);
  grants_.erase(found);
}

void GrantOwner::Revoke(uint64_t id, Deadline deadline, WorkerCallback callback, int64_t now_ns) {
  const auto found = grants_.find(id);
  if (found == grants_.end()) {
    const Error closed = Closed();
    return callback(closed_ ? &closed : nullptr);
  }
  Grant& grant = found->second;
  grant.callbacks.push_back(callback);
  grant.deadline = deadline;
  Pursue(grant, now_ns);
}

void GrantOwner::Pursue(Grant& grant, int64_t now_ns) {
  grant.next_revoke_ns = now_ns;
  grant.pause_ns = kFirstPauseNs;
  if (std::find(pursued_.begin(), pursued_.end(), grant.id) == pursued_.end()) pursued_.push_back(grant.id);
}

void GrantOwner::OnStopped(PeerHandle peer, const GrantMessage& message, int64_t now_ns) {
  if (Mutated(GrantMutant::kTakeAnyConfirmation)) {
    for (const uint64_t id : pursued_) grants_[id].stopped = message;
    return;
  }
  const auto found = grants_.find(message.grant);
  if (found == grants_.end() || found->second.writer != peer) return;
  Grant& grant = found->second;
  grant.stopped = message;  // said again it says the same
  if (std::find(pursued_.begin(), pursued_.end(), grant.id) == pursued_.end()) Pursue(grant, now_ns);
}

bool GrantOwner::AllArrived(const Grant& grant) const {
  if (!grant.stopped) return false;
  if (grant.stopped->failed > 0 && !Mutated(GrantMutant::kReleaseDespiteFailures)) return false;
  return Mutated(GrantMutant::kReleaseWithoutArrivals) ||
         environment_.ImmediatesSeen(grant.immediate) - grant.seen_before >= grant.stopped->succeeded;
}

bool GrantOwner::Advance(Grant& grant, int64_t now_ns) {
  if (environment_.ShutOut(grant.writer) || AllArrived(grant)) return true;
  if (!grant.stopped && now_ns >= grant.next_revoke_ns) {
    GrantMessage revoke;
    revoke.grant = grant.id;
    revoke.first_open = first_open();
    environment_.Say(grant.writer, revoke);
    grant.next_revoke_ns = now_ns + grant.pause_ns;
    grant.pause_ns = std::min(2 * grant.pause_ns, kLongestPauseNs);
  }
  if (grant.callbacks.empty()) return false;
  const bool hopeless = grant.stopped && grant.stopped->failed > 0;
  if (!hopeless && now_ns < grant.deadline.at_ns) return false;
  if (Mutated(GrantMutant::kReleaseAtDeadline)) return true;
  const Error error = InQuarantine(grant, hopeless ? ErrorCode::kDataLoss : ErrorCode::kDeadlineExceeded);
  Report(grant, &error);
  return false;
}

Error GrantOwner::InQuarantine(const Grant& grant, ErrorCode code) const {
  const std::string peer = environment_.PeerName(grant.writer);
  std::string why = "has not confirmed that it has stopped";
  if (grant.stopped && grant.stopped->failed > 0) {
    why = fmt::format("has stopped, but {} of its writes failed and may still land", grant.stopped->failed);
  } else if (grant.stopped) {
    why = fmt::format("has stopped, but {} of its {} writes have not arrived",
                      grant.stopped->succeeded - (environment_.ImmediatesSeen(grant.immediate) - grant.seen_before),
                      grant.stopped->succeeded);
  }
  return Error{code,
               fmt::format("grant {}: {} {}: keep the memory in quarantine; revoke again to wait longer, or remove the "
                           "peer",
                           grant.id, peer, why),
               peer,
               {}};
}

void GrantOwner::Report(Grant& grant, const Error* error) {
  for (const WorkerCallback& callback : std::exchange(grant.callbacks, {})) callback(error);
}

bool GrantOwner::Step(int64_t now_ns) {
  bool any = false;
  for (size_t i = 0; i < pursued_.size();) {
    const auto found = grants_.find(pursued_[i]);
    if (!Advance(found->second, now_ns)) {
      ++i;
      continue;
    }
    any = true;
    pursued_.erase(pursued_.begin() + static_cast<ptrdiff_t>(i));
    Grant grant = std::move(found->second);
    grants_.erase(found);
    environment_.EndExpectation(grant.immediate);
    Report(grant, nullptr);
  }
  return any;
}

int64_t GrantOwner::next_ns() const {
  int64_t next = std::numeric_limits<int64_t>::max();
  for (const uint64_t id : pursued_) {
    const Grant& grant = grants_.at(id);
    if (!grant.stopped) next = std::min(next, grant.next_revoke_ns);
    if (!grant.callbacks.empty()) next = std::min(next, grant.deadline.at_ns);
  }
  return next;
}

void GrantOwner::EndAll() {
  closed_ = true;
  const Error closed = Closed();
  pursued_.clear();
  for (auto& [id, grant] : std::exchange(grants_, {})) Report(grant, &closed);
}

}  // namespace jax_fabric
