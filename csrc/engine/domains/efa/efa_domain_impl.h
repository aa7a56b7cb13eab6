// The Domain behind CreateEfaDomain. See efa_domain.h for what it does.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_DOMAIN_IMPL_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_DOMAIN_IMPL_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/efa/efa_address.h"
#include "csrc/engine/domains/efa/efa_domain.h"
#include "csrc/engine/domains/efa/efa_peer.h"
#include "csrc/engine/domains/efa/fabric_endpoint.h"
#include "csrc/engine/domains/efa/fabric_registrar.h"
#include "csrc/engine/domains/efa/message_buffers.h"
#include "csrc/engine/domains/efa/operation.h"
#include "csrc/engine/domains/nic/loopback.h"
#include "csrc/engine/domains/nic/memory_table.h"
#include "csrc/engine/domains/nic/wire_message.h"
#include "csrc/engine/handshake.h"

namespace jax_fabric::efa {

class EfaDomain final : public Domain {
 public:
  static Result<std::unique_ptr<EfaDomain>> Create(const EfaDomainOptions& options);
  ~EfaDomain() override;

  DomainKind kind() const override { return DomainKind::kEfa; }
  const std::string& name() const override { return name_; }
  ByteView address() const override { return address_; }
  const DomainLimits& limits() const override { return limits_; }

  Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) override {
    return memory_.Register(address, length, kind, access);
  }
  Status DeregisterMemory(const MemoryRegion& region) override { return memory_.Deregister(region); }

  Result<PeerId> AddPeer(ByteView address) override;
  PeerState peer_state(PeerId peer) const override;
  void RemovePeer(PeerId peer) override;

  std::string peer_path(PeerId) const override { return "libfabric " + options_.provider; }

  PostResult PostWrite(const WriteRequest& request) override;
  PostResult PostPages(const PagesRequest& request, uint32_t& posted) override;
  PostResult PostSend(const SendRequest& request) override;
  PostResult PostReceive(const ReceiveRequest& request) override;

  size_t Poll(std::span<Completion> completions) override;
  // Providers with manual progress, EFA's among them, have to be polled.
  int wait_fd() const override { return -1; }
  bool ArmWait() override { return false; }
  const std::string& last_error() const override { return last_error_; }
  void* MapRemote(PeerId, uint64_t, uint64_t, uint64_t) override { return nullptr; }

 private:
  struct Report {
    Completion completion;
    std::string cause;
  };
  struct HeldMessage {
    MessageBuffer* buffer = nullptr;
    Remote* remote = nullptr;  // null: the domain's own
    uint64_t attempt = 0;
    ByteView payload;
  };

  // Room may come without a sign.
  static constexpr uint32_t kPollsPerRefusal = 16;

  EfaDomain(const EfaDomainOptions& options, std::unique_ptr<FabricEndpoint> endpoint, uint64_t incarnation);
  Status Start();
  // Says goodbye to all, and gives them a moment to end what is under way.
  void Leave();

  // efa_domain_post.cc
  PostResult Reject(std::string why);
  PostResult RejectPeer(const char* what, PeerId peer);
  // kPosted: go on.
  PostResult CheckPeer(const char* what, PeerId peer) {
    if (peer >= peers_.size() || peers_[peer].state != PeerState::kReady) return RejectPeer(what, peer);
    return outstanding_ >= limits_.max_outstanding ? PostResult::kAgain : PostResult::kPosted;
  }
  // Asking again what the provider has just refused takes the locks, over shm the target's, that are wanted to make
  // room.
  bool HasNoRoom(const EfaPeer& peer) const { return peer.refused && polls_ - peer.refused_poll < kPollsPerRefusal; }
  PostResult PostToSelf(const WriteRequest& request);
  PostResult PostOne(const WriteRequest& request, uint64_t provider_key, bool more);
  PostResult Refused(const WriteRequest& request, int64_t error);
  // What libfabric says to it.
  int64_t WriteMessage(Operation& operation, const void* source, uint64_t length, uint64_t flags);
  void PostImmediates();
  // Whether it is over with this operation's immediate: posted, or ended because the peer is lost.
  bool PostImmediate(Operation& operation);
  PostResult SendToSelf(const SendRequest& request);
  void Deliver(const HeldMessage& message, const ReceiveRequest& receive);
  void DeliverHeld();

  // efa_domain_poll.cc
  size_t TakeReports(std::span<Completion> out);
  size_t ReadQueue(std::span<Completion> out);
  size_t ReadError(Completion& out);
  // Of what came from a peer. Whether `out` was filled.
  bool Arrive(const fi_cq_data_entry& entry, Completion& out);
  // Whether `out` was filled.
  bool Finish(Operation& operation, const fi_cq_err_entry* error, Completion& out);
  // Of an operation that `out` describes. False: it is not reported yet.
  bool Fail(const fi_cq_err_entry& error, Completion& out);
  // The provider is done with it. Afterwards it is free.
  void Release(Operation& operation);
  // It failed for a reason that may be the peer's death: see EfaPeer::Suspect.
  void Suspect(Completion completion, std::string cause);
  std::string Words(const fi_cq_err_entry& error) const;
  void Push(Completion completion, std::string cause = {}) { reports_.push_back({completion, std::move(cause)}); }
  void AdvanceLoopback();

  // efa_domain_peers.cc
  Result<Remote*> EnsureRemote(const EfaAddress& address);
  void FailPeer(PeerId peer, ErrorCode code, const std::string& cause);
  // Everything of its that was posted ends, what fails with that error, when the provider does not touch its memory any
  // more.
  void EndOperations(PeerId peer, ErrorCode code, const std::string& cause);
  // The provider does not let go of them: they end here.
  void AbandonOperations(PeerId peer);
  // The provider is of no use any more: all peers are lost, and stay so.
  void Break(const std::string& cause);
  void KeepDraining(int64_t elapsed_ns);
  void SettleSuspects(EfaPeer& peer, uint64_t answered);
  void FinishRemoval(const Removal& removal);
  void Housekeep();
  void KeepPeers(int64_t now_ns);
  void KeepRemotes(int64_t elapsed_ns);

  // efa_domain_control.cc
  void Send(Remote& remote, nic::WireMessage message);
  bool TrySend(Remote& remote, ByteView bytes);
  void FlushOutboxes();
  void PostReceives();
  // Whether the buffer is kept.
  bool OnMessage(MessageBuffer& buffer, size_t bytes);
  void OnHandshake(const nic::WireMessage& message);
  void OnHello(const HandshakeDatagram& hello);
  void OnControl(Remote& remote, const nic::WireMessage& message);
  void OnGoodbye(Remote& remote, uint64_t attempt);
  void OnLeaving(Remote& remote, bool quiesced);
  void SendHandshake(Remote& remote, const HandshakeDatagram& datagram);
  void Ping(EfaPeer& peer);

  const EfaDomainOptions options_;
  const std::unique_ptr<FabricEndpoint> endpoint_;
  // libfabric's datagrams over connections (ofi_rxm, 1.17) crash the target when a connection ends in the middle of a
  // write with an immediate: the receive queue gets an error that belongs to no operation. Payloads without one are
  // safe, and an immediate without payload has no middle.
  const bool splits_;
  const uint64_t incarnation_;
  std::string name_;
  DomainLimits limits_;
  Bytes address_;
  std::string last_error_;
  std::string broken_;  // why, when it is
  FabricRegistrar registrar_;
  nic::MemoryTable memory_;
  nic::Loopback loopback_;
  std::unique_ptr<MessageBuffers> send_buffers_;
  std::unique_ptr<MessageBuffers> receive_buffers_;
  OperationPool operations_;
  std::array<std::byte, 64> scratch_{};  // what empty writes name as their source
  MemoryRegion scratch_region_;

  HandshakeAnswerer answerer_;
  std::vector<EfaPeer> peers_;
  std::vector<PeerId> live_;      // connecting or ready
  std::vector<PeerId> draining_;  // lost or removed, with operations in flight
  std::unordered_map<uint64_t, std::unique_ptr<Remote>> remotes_;
  std::vector<Removal> removals_;

  uint32_t outstanding_ = 0;           // posted and not yet polled
  std::deque<Operation*> immediates_;  // whose payloads have arrived
  std::deque<Report> reports_;
  std::deque<ReceiveRequest> receives_;
  std::deque<HeldMessage> held_;
  uint32_t own_held_ = 0;
  uint32_t posted_receives_ = 0;
  uint32_t waiting_outboxes_ = 0;
  uint32_t polls_ = 0;
  int64_t housekept_ns_ = 0;
  uint64_t draws_ = 0;
};

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_DOMAIN_IMPL_H_
