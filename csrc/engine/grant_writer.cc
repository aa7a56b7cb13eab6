#include "csrc/engine/grant_writer.h"

#include <algorithm>

#include "csrc/engine/grant_mutants.h"

namespace jax_fabric {

bool GrantWriter::Admit(PeerHandle owner, const WriteGrant& grant, Operation& operation) {
  Forget(owner, grant.first_open);
  if (grant.id < first_open_[owner]) return false;
  Grant& known = grants_[{owner, grant.id}];
  if (known.stopped) return false;
  known.active.push_back(&operation);
  return true;
}

void GrantWriter::Retire(PeerHandle owner, uint64_t id, Operation& operation, uint64_t posted, uint64_t succeeded) {
  const auto found = grants_.find({owner, id});
  if (found == grants_.end()) return;  // the owner was lost
  Grant& grant = found->second;
  if (std::erase(grant.active, &operation) == 0) return;
  if (Mutated(GrantMutant::kForgetFormerTransfers)) grant.posted = grant.succeeded = 0;
  grant.posted += posted;
  grant.succeeded += succeeded;
  if (!grant.active.empty()) return;
  if (grant.stopped) Confirm(found->first, grant);
  if (id < first_open_[owner]) grants_.erase(found);
}

void GrantWriter::Stop(PeerHandle owner, uint64_t id, uint64_t first_open) {
  Forget(owner, first_open);
  if (id < first_open_[owner]) return;  // the owner knows already: this was late
  const Key key{owner, id};
  if (Mutated(GrantMutant::kForgetEarlyRevocation) && !grants_.contains(key)) return Confirm(key, Grant{});
  Grant& grant = grants_[key];
  grant.stopped = true;
  if (grant.active.empty() || Mutated(GrantMutant::kConfirmWhileInFlight)) return Confirm(key, grant);
  // The last one to retire confirms, some of them before this returns.
  const std::vector<Operation*> active = grant.active;
  for (Operation* operation : active) withdraw_(*operation);
}

void GrantWriter::Confirm(const Key& key, const Grant& grant) {
  GrantMessage stopped;
  stopped.kind = GrantMessage::Kind::kStopped;
  stopped.grant = key.second;
  stopped.succeeded = grant.succeeded;
  stopped.failed = Mutated(GrantMutant::kForgetWhatFailed) ? 0 : grant.posted - grant.succeeded;
  say_(key.first, stopped);
}

void GrantWriter::Forget(PeerHandle owner, uint64_t first_open) {
  uint64_t& known = first_open_[owner];
  if (first_open <= known) return;
  for (auto it = grants_.lower_bound({owner, 0}); it != grants_.end() && it->first < Key{owner, first_open};) {
    it = it->second.active.empty() ? grants_.erase(it) : std::next(it);
  }
  known = first_open;
}

void GrantWriter::OnPeerLost(PeerHandle owner) {
  grants_.erase(grants_.lower_bound({owner, 0}), grants_.upper_bound({owner, ~uint64_t{0}}));
  first_open_.erase(owner);
}

}  // namespace jax_fabric
