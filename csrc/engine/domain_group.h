// DomainGroup: the NICs of one local device, as one endpoint. All requests of users and protocols go through it.
//
// Threads: every public method is thread-safe unless it says "worker only". Requests travel to the worker over a
// lock-free queue; callbacks run on the worker and must neither block nor throw.
#ifndef JAX_FABRIC_ENGINE_DOMAIN_GROUP_H_
#define JAX_FABRIC_ENGINE_DOMAIN_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/group_options.h"
#include "csrc/engine/memory.h"
#include "csrc/engine/poller_set.h"
#include "csrc/engine/requests.h"
#include "csrc/engine/scatter.h"
#include "csrc/engine/transfer.h"
#include "csrc/engine/worker_callback.h"

namespace jax_fabric {

class Executor;
class GrantProtocol;
class GroupDriver;
class MessagePool;
class PeerTable;
class RegistrationCache;
class RequestPlanner;
class SubmissionPool;
class WaitHub;
class Waker;

class DomainGroup {
 public:
  ~DomainGroup();

  const std::string& name() const;
  size_t nic_count() const;
  const Clock& clock() const;
  // Of the fabric's secret; null in a fabric without one.
  const FabricKey* key() const { return key_.get(); }

  // --- peers
  // Versioned, checksummed bytes that contain every NIC's address, this engine's incarnation and its limits.
  Bytes Address() const;
  // Starts to connect. Refuses another protocol version, secret, domain kind or NIC count with words. The same address
  // twice gives the same handle.
  Result<PeerHandle> AddPeer(ByteView address);
  // Until every peer is ready; the error names those that are not.
  Status WaitPeers(std::span<const PeerHandle> peers, Deadline deadline);
  // Requests to it complete with kUnavailable and its name.
  void RemovePeer(PeerHandle peer);
  // An error, its cause, once the peer is lost or removed.
  Status PeerStatus(PeerHandle peer) const;
  // As errors name it (Error::peer); empty: there is no such peer.
  std::string PeerLabel(PeerHandle peer) const;
  // How writes reach it, for users; "not connected" before it is ready and after it is lost (see Domain::peer_path).
  Result<std::string> PeerPath(PeerHandle peer) const;
  // How many peers of this group were lost or removed so far: PeerStatus says which.
  uint64_t peer_losses() const;

  // --- memory
  Result<RegisteredMemory> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access);
  Status DeregisterMemory(const RegisteredMemory& memory);
  // What a peer needs to write here, as bytes; ParseDescriptor is the other side.
  Result<Bytes> Describe(const RegisteredMemory& memory) const;
  static Result<RemoteMemory> ParseDescriptor(ByteView descriptor);
  // The peer's memory as this process can address it, or null (see Domain::MapRemote).
  void* MapRemote(PeerHandle peer, const RemoteMemory& memory);

  // --- immediates: opaque counter ids that this group hands out; returns the first of `count` consecutive ones.
  Result<uint32_t> AllocateImmediates(uint32_t count);
  // One shot, with carry-over: calls back once `count` immediates with this id have been seen that no earlier
  // expectation consumed, whether they came before or after this call. One expectation an id at a time. At the
  // deadline: kDeadlineExceeded, and what has come stays for the next expectation. With `losses_seen`, what
  // peer_losses() was before the caller looked at its peers, it ends with kUnavailable as soon as there are more.
  Status ExpectImmediate(uint32_t immediate, uint32_t count, Deadline deadline, WorkerCallback callback,
                         std::optional<uint64_t> losses_seen = {});
  // The callback gets kCancelled unless it has run already.
  void CancelExpectation(uint32_t immediate);
  // Ids back, for other owners; the counts are forgotten. The caller knows that no peer uses them any more.
  Status ReleaseImmediates(uint32_t first, uint32_t count);
  // Immediates that came with an id that nobody owns.
  uint64_t stray_immediates() const;
  // How many immediates a Write or a scatter entry of at most `max_length` bytes brings; the same on both sides.
  Result<uint64_t> WriteImmediates(PeerHandle peer, uint64_t max_length) const;
  Result<uint64_t> ScatterImmediates(PeerHandle peer, uint64_t max_length) const;

  // --- pollers: what the worker of this group looks at in each of its steps, where no descriptor says that there is
  // something to do: words that a device stores, say. They may use this group, and may not wait. To be dropped before
  // the engine; `poll` and how often as of PollerSet::Add.
  std::unique_ptr<Poller> AddPoller(std::function<bool()> poll, PollerSet::Urgency urgency);

  // --- grants: leave to write, that can be taken back with proof that nothing lands any more. Both sides have to
  // receive messages. What writers do without a grant is not held back.
  // For the writer, which gets it along with the descriptor. `immediate` is one of this group's, for this grant alone.
  Result<WriteGrant> OpenGrant(PeerHandle writer, uint32_t immediate);
  // All that was expected has come: nothing needs to be taken back.
  Status CloseGrant(const WriteGrant& grant);
  // Calls back once: with null when nothing can land any more that was written under the grant, so that the memory may
  // be used for something else; whoever expects its immediate has got kCancelled then. With kDeadlineExceeded when that
  // is not certain yet, with kDataLoss when it will not be (a write failed at the writer): then the memory is in
  // quarantine until another RevokeGrant says otherwise, or the peer was removed. A writer that is lost is removed.
  Status RevokeGrant(const WriteGrant& grant, Deadline deadline, WorkerCallback callback);
  // The writer's: what it writes under the grant ends with kCancelled, now and later; the owner is told once all has
  // drained, and its expectation ends.
  Status GiveUpGrant(PeerHandle owner, const WriteGrant& grant);

  // --- requests. What they refer to (descriptors, indices, messages) is copied; source memory is not, and must stay
  // as it is until the request has ended.
  Result<std::unique_ptr<PreparedScatter>> PrepareScatter(std::span<const ScatterEntry> entries);
  Result<Transfer> Write(const SingleWrite& write, RequestOptions options);
  Result<Transfer> WritePages(const PagedWrites& write, RequestOptions options);
  Result<Transfer> Scatter(std::span<const ScatterEntry> entries, RequestOptions options);
  Result<Transfer> Barrier(std::span<const BarrierTarget> targets, RequestOptions options);

  // --- messages, over the first NIC. Peers may be in any order; one peer's messages, too.
  Result<Transfer> Send(PeerHandle peer, ByteView message, RequestOptions options);
  Status ReceiveMessages(ReceiveOptions options);
  // Messages that came and were dropped, in a fabric with a secret: not from who they say that they are from, or not to
  // this group; and genuine ones that had come before.
  uint64_t forged_messages() const;
  uint64_t replayed_messages() const;

 private:
  friend class TransferEngine;

  // Everything referred to outlives the group.
  DomainGroup(GroupOptions options, std::shared_ptr<const FabricKey> key, uint64_t incarnation, const Clock& clock,
              Waker& waker, WaitHub& hub, Executor& callback_executor);
  GroupDriver& driver() { return *driver_; }
  Status CheckAccepting(const char* what) const;
  Status CheckGrants(const char* what) const;
  Status CheckGrant(const char* what, const RequestOptions& options, PeerHandle peer, PeerHandle first,
                    std::optional<uint32_t> immediate) const;

  const std::shared_ptr<const FabricKey> key_;  // null: a fabric without a secret
  const uint64_t incarnation_;
  // In this order: a NIC may write into messages_ until the driver's domains are gone.
  std::unique_ptr<MessagePool> messages_;
  std::unique_ptr<GroupDriver> driver_;
  std::unique_ptr<PeerTable> peers_;
  std::unique_ptr<GrantProtocol> grants_;
  std::unique_ptr<RegistrationCache> registrations_;
  std::unique_ptr<RequestPlanner> planner_;
  std::unique_ptr<SubmissionPool> submissions_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DOMAIN_GROUP_H_
