// The Domain behind CreateLocalDomain. See local_domain.h for what it does and mailbox_layout.h for how.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_DOMAIN_IMPL_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_DOMAIN_IMPL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/base/unique_fd.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/local/deferred_write.h"
#include "csrc/engine/domains/local/fixed_queue.h"
#include "csrc/engine/domains/local/lane_reader.h"
#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/domains/local/local_peer.h"
#include "csrc/engine/domains/local/process_hub.h"

namespace jax_fabric::local {

class LocalDomain final : public Domain {
 public:
  static Result<std::unique_ptr<LocalDomain>> Create(const LocalDomainOptions& options);
  ~LocalDomain() override;

  DomainKind kind() const override { return DomainKind::kLocal; }
  const std::string& name() const override { return options_.name; }
  ByteView address() const override { return address_; }
  const DomainLimits& limits() const override { return limits_; }

  Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) override;
  Status DeregisterMemory(const MemoryRegion& region) override;

  Result<PeerId> AddPeer(ByteView address) override;
  PeerState peer_state(PeerId peer) const override;
  void RemovePeer(PeerId peer) override;
  std::string peer_path(PeerId peer) const override;

  PostResult PostWrite(const WriteRequest& request) override;
  PostResult PostPages(const PagesRequest& request, uint32_t& posted) override;
  PostResult PostSend(const SendRequest& request) override;
  PostResult PostReceive(const ReceiveRequest& request) override;

  size_t Poll(std::span<Completion> completions) override;
  int wait_fd() const override { return epoll_.get(); }
  bool ArmWait() override;
  const std::string& last_error() const override { return last_error_; }
  void* MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override;

 private:
  enum class Advance { kFinished, kCopied, kWaiting };

  LocalDomain(const LocalDomainOptions& options, ProcessHub& hub, std::shared_ptr<Endpoint> endpoint);
  Status Start();
  Status Watch(int fd, uint32_t tag);
  void Unwatch(int fd);

  // local_domain_post.cc
  PostResult Reject(Error error);
  PostResult CheckPost(const char* operation, PeerId peer, uint64_t local_key, const void* source, uint64_t length);
  PostResult Defer(const WriteRequest& request);
  PostResult CheckPages(const PagesRequest& request);
  void Complete(CompletionKind kind, PeerId peer, uint64_t context, uint64_t length, ErrorCode code,
                uint32_t count = 1);
  Advance AdvanceWrite(DeferredWrite& write);
  // The next bytes; kFinished: they cannot be copied, `error` says why.
  Advance AdvanceCopy(DeferredWrite& write, Error& error);
  Advance PushBounce(DeferredWrite& write);
  Advance TakeBounce(DeferredWrite& write, Error& error);
  void FinishWrite(const DeferredWrite& write, ErrorCode code);
  void AdvanceDeferred();

  // local_domain_poll.cc
  size_t TakeOwn(std::span<Completion> out);
  size_t TakeIncoming(std::span<Completion> out);
  size_t TakeFromLane(LaneReader& lane, std::span<Completion> out);
  Completion Deliver(const LaneReader& lane, ByteView message);
  void Land(LaneReader& lane, uint32_t slot);
  void RescanLanes();
  void FreeClosingLanes();
  bool SomethingCame() const;
  void Disarm();
  void Housekeep();
  void HandleEvents();
  void PollConnecting();
  void CheckLiveness();
  void FreeHalfClaimedLanes();

  // local_domain.cc
  Status AddProcessPeer(LocalPeer& peer);
  void FailPeer(LocalPeer& peer, ErrorCode code, std::string why);
  void AbortWrites(PeerId peer, ErrorCode code);
  bool IsStarved();
  // Whether the peer, removed, is still in the middle of a write to this domain.
  bool IsInside(const LocalPeer& peer) const;
  LocalPeer* FindPeer(PeerId peer) const;
  PeerId KnownPeer(uint64_t incarnation) const;
  void ForgetLanesOf(const LocalPeer& peer, bool process_is_dead);
  void Log(const std::string& line) const;

  const LocalDomainOptions options_;
  ProcessHub& hub_;
  const std::shared_ptr<Endpoint> endpoint_;
  Mailbox& mailbox_;
  RegionTable& regions_;
  const uint64_t incarnation_;
  DomainLimits limits_;
  Bytes address_;
  bool registered_ = false;
  std::string last_error_;

  // Dense by PeerId; the vector changes under the mutex, which MapRemote takes.
  mutable std::mutex peers_mutex_;
  std::vector<std::unique_ptr<LocalPeer>> peers_;
  std::vector<LocalPeer*> live_;  // connecting or ready: what must be looked at, however many have gone
  std::unordered_map<uint64_t, PeerId> peer_by_incarnation_;  // without removed ones
  std::deque<PeerId> connecting_;

  // Own requests: posted and not yet polled = outstanding_ = deferred_ + completions_.
  uint32_t outstanding_ = 0;
  FixedQueue<DeferredWrite> deferred_;
  FixedQueue<Completion> completions_;
  FixedQueue<ReceiveRequest> receives_;
  std::deque<std::pair<Completion, std::string>> faults_;  // each with its cause

  // Incoming.
  std::vector<LaneReader> lanes_;
  std::vector<bool> lane_is_open_;
  uint32_t lane_changes_seen_ = 0;
  bool lanes_are_closing_ = false;
  size_t next_lane_ = 0;
  bool incoming_first_ = false;

  // Sleeping and rare work.
  UniqueFd epoll_;
  UniqueFd liveness_timer_;  // only where a peer has no pidfd
  bool armed_ = false;
  bool woken_ = false;
  uint32_t polls_ = 0;
  int64_t next_housekeeping_ns_ = 0;
  int64_t next_liveness_ns_ = 0;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_DOMAIN_IMPL_H_
