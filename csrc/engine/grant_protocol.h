// GrantProtocol: the grants of a group, as owner and as writer, on its worker. The messages of the protocol travel like
// users' and are taken out before those see them.
#ifndef JAX_FABRIC_ENGINE_GRANT_PROTOCOL_H_
#define JAX_FABRIC_ENGINE_GRANT_PROTOCOL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "csrc/base/status.h"
#include "csrc/engine/grant_owner.h"
#include "csrc/engine/grant_writer.h"
#include "csrc/engine/message_pool.h"
#include "csrc/engine/operation.h"
#include "csrc/engine/peer_table.h"
#include "csrc/engine/write_grant.h"

namespace jax_fabric {

class DomainGroup;
class GroupDriver;

class GrantProtocol final : public GrantEnvironment, public MessageFilter {
 public:
  // All of the same group, which outlives it.
  GrantProtocol(DomainGroup& group, GroupDriver& driver, PeerTable& peers);

  // --- any thread: see DomainGroup
  WriteGrant Open(PeerHandle writer, uint32_t immediate);
  void Close(uint64_t id);
  void Revoke(uint64_t id, Deadline deadline, WorkerCallback callback);
  void GiveUp(PeerHandle owner, const WriteGrant& grant);

  // --- worker only
  // An operation with a grant begins: whether it may.
  bool Admit(Operation& operation);
  // Nothing of it is in flight any more. Before its owner hears of it.
  void Retire(Operation& operation);
  void OnPeerLost(PeerHandle peer) { writer_.OnPeerLost(peer); }
  bool Step(int64_t now_ns);
  int64_t next_ns() const { return owner_.next_ns(); }
  void EndAll() { owner_.EndAll(); }
  bool Take(const Peer* peer, ByteView message) override;

 private:
  void Say(PeerHandle peer, const GrantMessage& message) override;
  uint64_t ImmediatesSeen(uint32_t immediate) const override;
  bool ShutOut(PeerHandle peer) override;
  void EndExpectation(uint32_t immediate) override;
  std::string PeerName(PeerHandle peer) const override;
  int64_t NowNs() const;
  void OnWorker(std::function<void()> run);

  DomainGroup& group_;
  GroupDriver& driver_;
  PeerTable& peers_;
  GrantOwner owner_;
  GrantWriter writer_;
  std::mutex mutex_;  // so that grants reach the worker in the order of their ids
  uint64_t next_id_ = 1;
  // Of owner_, for grants that are made: relaxed, it may be too low.
  std::atomic<uint64_t> first_open_{1};
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_GRANT_PROTOCOL_H_
