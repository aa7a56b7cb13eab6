// The Domain behind CreateConnectXDomain. See connectx_domain.h for what it does.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DOMAIN_IMPL_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DOMAIN_IMPL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/connectx/buffer_pool.h"
#include "csrc/engine/domains/connectx/completion_queue.h"
#include "csrc/engine/domains/connectx/connectx_address.h"
#include "csrc/engine/domains/connectx/connectx_domain.h"
#include "csrc/engine/domains/connectx/connectx_peer.h"
#include "csrc/engine/domains/connectx/datagram_endpoint.h"
#include "csrc/engine/domains/connectx/growing_queue.h"
#include "csrc/engine/domains/connectx/verbs_device.h"
#include "csrc/engine/domains/connectx/verbs_registrar.h"
#include "csrc/engine/domains/connectx/work_id.h"
#include "csrc/engine/domains/nic/loopback.h"
#include "csrc/engine/domains/nic/memory_table.h"
#include "csrc/engine/domains/nic/wire_message.h"
#include "csrc/engine/handshake.h"

namespace jax_fabric::connectx {

class ConnectXDomain final : public Domain {
 public:
  static Result<std::unique_ptr<ConnectXDomain>> Create(const ConnectXDomainOptions& options);
  ~ConnectXDomain() override;

  DomainKind kind() const override { return DomainKind::kConnectX; }
  const std::string& name() const override { return device_->name(); }
  ByteView address() const override { return address_; }
  const DomainLimits& limits() const override { return limits_; }

  Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) override {
    return memory_.Register(address, length, kind, access);
  }
  Status DeregisterMemory(const MemoryRegion& region) override { return memory_.Deregister(region); }

  Result<PeerId> AddPeer(ByteView address) override;
  PeerState peer_state(PeerId peer) const override;
  void RemovePeer(PeerId peer) override;
  std::string peer_path(PeerId) const override { return "libibverbs " + device_->name(); }

  PostResult PostWrite(const WriteRequest& request) override;
  PostResult PostPages(const PagesRequest& request, uint32_t& posted) override;
  PostResult PostSend(const SendRequest& request) override;
  PostResult PostReceive(const ReceiveRequest& request) override;

  size_t Poll(std::span<Completion> completions) override;
  int wait_fd() const override { return queue_->wait_fd(); }
  bool ArmWait() override;
  const std::string& last_error() const override { return last_error_; }
  void* MapRemote(PeerId, uint64_t, uint64_t, uint64_t) override { return nullptr; }

 private:
  static constexpr uint32_t kMarkers = 1024;  // the completion queue has room for them

  struct Report {
    Completion completion;
    std::string cause;
  };
  struct HeldMessage {
    uint32_t buffer = 0;
    Remote* remote = nullptr;  // null: the domain's own
    uint64_t attempt = 0;
    uint64_t length = 0;
  };

  ConnectXDomain(const ConnectXDomainOptions& options, std::unique_ptr<VerbsDevice> device, uint64_t incarnation);
  Status Start();
  Result<Owned<ibv_srq>> MakeReceiveQueue(uint32_t depth, uint32_t elements);

  // connectx_domain_post.cc
  PostResult Reject(std::string why);
  // kPosted: go on.
  PostResult CheckPeer(const char* what, PeerId peer);
  PostResult CheckWrite(PeerId peer, uint64_t length, uint64_t remote_key, uint64_t& provider_key);
  PostResult PostToSelf(const WriteRequest& request);
  // A chain of at most kChain writes; `posted` says how many.
  PostResult PostChain(const PagesRequest& request, uint64_t provider_key, uint32_t first, uint32_t count,
                       uint32_t& posted);
  PostResult SendToSelf(const SendRequest& request);
  bool HoldSource(const SendRequest& request, nic::HeldRegion*& region);
  void Deliver(const HeldMessage& message, const ReceiveRequest& receive);
  void DeliverHeld();
  void CountTaken(const HeldMessage& message);

  // connectx_domain_poll.cc
  size_t TakeReports(std::span<Completion> out);
  // Whether there was anything.
  bool PollQueue();
  // Something goes on that a sleeper would keep waiting.
  bool IsBusy() const;
  void OnWork(const ibv_wc& work);
  void OnLane(const ibv_wc& work, const WorkId& id);
  void OnMessage(const ibv_wc& work, uint32_t buffer);
  // The `count` oldest requests of a lane are over. `cause` null: successfully.
  void Retire(Lane& lane, uint32_t count, ErrorCode code, const std::string* cause);
  std::string Words(const Lane& lane, const ibv_wc& work, std::string_view meaning) const;
  void PostImmediateReceives();
  void PostMessageReceives();
  void AdvanceLoopback();
  void Push(const Completion& completion) { good_.Push(completion); }
  void PushError(const Completion& completion, std::string cause) {
    reports_.push_back({completion, std::move(cause)});
  }

  // connectx_domain_peers.cc
  Result<Remote*> EnsureRemote(const ConnectXAddress& address);
  Result<std::unique_ptr<Connection>> MakeConnection(Remote& remote, uint32_t depth);
  Status StartConnection(PeerId peer, uint64_t renews, int64_t timeout_us);
  Status FinishConnection(ConnectXPeer& peer, ByteView answer);
  Result<Bytes> Accept(const HandshakeDatagram& hello);
  // Ends what the device does for it; it is destroyed when the device has let go of it.
  void Close(std::unique_ptr<Connection> connection, ErrorCode code, const std::string& cause);
  void BeginClosing(Connection& connection);
  void CloseInbound(Remote& remote, PeerId removal);
  void SweepClosing();
  void FinishClosing(Connection& connection);
  void SweepBroken();
  // By value: it may be a part of what ends here.
  void FailPeer(PeerId peer, ErrorCode code, std::string cause);
  void EndOperations(PeerId peer, ErrorCode code, const std::string& cause);
  void Housekeep();
  void KeepPeers(int64_t now_ns);
  void KeepRemotes(int64_t elapsed_ns);

  // connectx_domain_control.cc
  void Send(Remote& remote, nic::WireMessage message);
  void OnDatagram(ByteView bytes);
  void OnHandshake(const nic::WireMessage& message);
  void OnHello(const HandshakeDatagram& hello);
  void OnControl(Remote& remote, const nic::WireMessage& message);
  void SendHandshake(Remote& remote, const HandshakeDatagram& datagram);
  // Its peer whose connection has that attempt, or null.
  ConnectXPeer* PeerOf(const Remote& remote, uint64_t attempt);
  void Leave();

  const ConnectXDomainOptions options_;
  const uint64_t incarnation_;
  // Destroyed in the opposite order.
  const std::unique_ptr<VerbsDevice> device_;
  std::unique_ptr<CompletionQueue> queue_;
  Owned<ibv_srq> write_receives_;
  Owned<ibv_srq> message_receives_;
  DomainLimits limits_;
  Bytes address_;
  std::string last_error_;
  VerbsRegistrar registrar_;
  nic::MemoryTable memory_;
  nic::Loopback loopback_;
  std::unique_ptr<BufferPool> send_buffers_;
  std::unique_ptr<BufferPool> receive_buffers_;
  std::unique_ptr<DatagramEndpoint> datagrams_;

  HandshakeAnswerer answerer_;
  uint64_t attempts_ = 0;  // this domain's, of whomever
  std::vector<ConnectXPeer> peers_;
  std::vector<PeerId> live_;    // connecting or ready
  std::vector<PeerId> broken_;  // with a broken lane, to be connected anew
  std::unordered_map<uint64_t, std::unique_ptr<Remote>> remotes_;
  std::unordered_map<uint32_t, Connection*> inbound_;  // by the number of the queue pair for messages
  std::vector<std::unique_ptr<Connection>> closing_;
  uint32_t markers_ = 0;      // posted by connections that close, at most kMarkers
  std::vector<Lane*> lanes_;  // by index; null when gone

  uint32_t immediate_depth_ = 0;
  uint32_t message_depth_ = 0;
  uint32_t posted_immediates_ = 0;
  uint32_t posted_messages_ = 0;
  uint32_t outstanding_ = 0;  // posted and not yet polled
  GrowingQueue<Completion> good_;
  std::deque<Report> reports_;
  std::deque<ReceiveRequest> receives_;
  std::deque<HeldMessage> held_;
  uint32_t own_held_ = 0;
  uint32_t polls_ = 0;
  bool armed_ = false;  // since the last poll
  int64_t housekept_ns_ = 0;
  uint64_t draws_ = 0;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DOMAIN_IMPL_H_
