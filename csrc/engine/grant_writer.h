// GrantWriter: the writer's half of the protocol that takes grants back (see grant_owner.h). A state machine of one
// thread, the worker.
#ifndef JAX_FABRIC_ENGINE_GRANT_WRITER_H_
#define JAX_FABRIC_ENGINE_GRANT_WRITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "csrc/engine/grant_message.h"
#include "csrc/engine/requests.h"
#include "csrc/engine/write_grant.h"

namespace jax_fabric {

class Operation;

class GrantWriter {
 public:
  // `say`: as GrantEnvironment::Say. `withdraw`: posts no more of the operation; it retires once it has drained.
  GrantWriter(std::function<void(PeerHandle, const GrantMessage&)> say, std::function<void(Operation&)> withdraw)
      : say_(std::move(say)), withdraw_(std::move(withdraw)) {}

  // Whether the operation may write under the grant. Then it has to retire.
  bool Admit(PeerHandle owner, const WriteGrant& grant, Operation& operation);
  // Nothing of it is in flight any more; of `posted` writes so many succeeded.
  void Retire(PeerHandle owner, uint64_t grant, Operation& operation, uint64_t posted, uint64_t succeeded);
  // The owner revokes it, or this side gives it up; the owner is told once all has drained, and again each time.
  void Stop(PeerHandle owner, uint64_t grant, uint64_t first_open);
  void OnPeerLost(PeerHandle owner);

  // Grants that are remembered.
  size_t size() const { return grants_.size(); }

 private:
  struct Grant {
    bool stopped = false;
    std::vector<Operation*> active;
    uint64_t posted = 0;  // by what has retired
    uint64_t succeeded = 0;
  };
  using Key = std::pair<PeerHandle, uint64_t>;

  // Of what is over nothing needs to be known, except that it is over.
  void Forget(PeerHandle owner, uint64_t first_open);
  void Confirm(const Key& key, const Grant& grant);

  const std::function<void(PeerHandle, const GrantMessage&)> say_;
  const std::function<void(Operation&)> withdraw_;
  std::map<Key, Grant> grants_;
  std::map<PeerHandle, uint64_t> first_open_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_GRANT_WRITER_H_
