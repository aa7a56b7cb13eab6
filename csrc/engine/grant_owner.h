// GrantOwner: the owner's half of the protocol that takes grants back. A state machine of one thread, the worker.
//
// A revoked grant is over, and its memory free, once nothing can land in it any more. Either its writer has confirmed:
// all that it had posted has ended there; each write that succeeded brings its immediate exactly once, after its
// payload, so when that many have come, all of them have landed (a success alone says nothing about the owner's
// memory); and none failed, for a failed write may land at any time. Or the writer's incarnation is shut out: it was
// removed as a peer, and the domains let nothing of it land any more. Until then the memory is in quarantine.
#ifndef JAX_FABRIC_ENGINE_GRANT_OWNER_H_
#define JAX_FABRIC_ENGINE_GRANT_OWNER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/engine/grant_message.h"
#include "csrc/engine/requests.h"
#include "csrc/engine/worker_callback.h"

namespace jax_fabric {

// What the protocol needs of the group that it runs in.
class GrantEnvironment {
 public:
  // May be lost, or refused for want of room: it is said again later.
  virtual void Say(PeerHandle peer, const GrantMessage& message) = 0;
  // How many immediates with this id have ever come.
  virtual uint64_t ImmediatesSeen(uint32_t immediate) const = 0;
  // Whether the peer is removed, so that nothing of it lands any more. One that is lost is removed first.
  virtual bool ShutOut(PeerHandle peer) = 0;
  // Whoever still waits for it waits in vain.
  virtual void EndExpectation(uint32_t immediate) = 0;
  virtual std::string PeerName(PeerHandle peer) const = 0;

 protected:
  ~GrantEnvironment() = default;
};

class GrantOwner {
 public:
  explicit GrantOwner(GrantEnvironment& environment) : environment_(environment) {}

  // In the order of ids. `seen_before`: immediates that came before anybody could know of the grant.
  void Open(uint64_t id, PeerHandle writer, uint32_t immediate, uint64_t seen_before);
  // All that was expected has come; the writer writes no more.
  void Close(uint64_t id);
  // Calls back once: with null when the memory is free, else with why it stays in quarantine. The grant is pursued
  // nevertheless; revoking again says how that went. A grant that is over is free at once.
  void Revoke(uint64_t id, Deadline deadline, WorkerCallback callback, int64_t now_ns);
  void OnStopped(PeerHandle peer, const GrantMessage& message, int64_t now_ns);

  // Returns whether anything happened.
  bool Step(int64_t now_ns);
  // When Step has something to do at the latest.
  int64_t next_ns() const;
  // Everything that waits ends with kCancelled, and so does what comes later.
  void EndAll();

  // The lowest grant that is not over.
  uint64_t first_open() const { return grants_.empty() ? last_opened_ + 1 : grants_.begin()->first; }
  size_t size() const { return grants_.size(); }

 private:
  struct Grant {
    uint64_t id = 0;
    PeerHandle writer = 0;
    uint32_t immediate = 0;
    uint64_t seen_before = 0;
    std::optional<GrantMessage> stopped;
    std::vector<WorkerCallback> callbacks;  // who waits until `deadline`
    Deadline deadline;
    int64_t next_revoke_ns = 0;
    int64_t pause_ns = 0;
  };

  // Returns whether the grant is over.
  bool Advance(Grant& grant, int64_t now_ns);
  bool AllArrived(const Grant& grant) const;
  void Pursue(Grant& grant, int64_t now_ns);
  void Report(Grant& grant, const Error* error);
  Error InQuarantine(const Grant& grant, ErrorCode code) const;

  GrantEnvironment& environment_;
  std::map<uint64_t, Grant> grants_;
  std::vector<uint64_t> pursued_;  // revoked by either side, and not over
  uint64_t last_opened_ = 0;
  bool closed_ = false;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_GRANT_OWNER_H_
