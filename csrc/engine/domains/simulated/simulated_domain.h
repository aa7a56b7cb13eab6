// SimulatedDomain: a NIC that does everything that the contract of domain.h allows, by seed. See simulated_network.h.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_DOMAIN_H_
#define JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_DOMAIN_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/domains/simulated/simulation_options.h"
#include "csrc/engine/handshake.h"

namespace jax_fabric::simulated {

class SimulatedDomain final : public Domain {
 public:
  // Destroying it is the death of its peer, for all others.
  SimulatedDomain(SimulatedNetwork& network, SimulatedDomainOptions options);
  ~SimulatedDomain() override;

  // The same for all others, while it is still there: nothing may be posted any more.
  void Leave();

  SimulatedFaults& faults() { return options_.faults; }
  // All writes that were taken, in order, where the options want them recorded.
  const std::vector<WriteRequest>& writes() const { return writes_; }
  void ForgetWrites() { writes_.clear(); }
  size_t regions() const { return regions_.size(); }
  // As if the peer's NIC had said so: everything posted to it fails, and it is lost.
  void KillPeer(PeerId peer, const std::string& cause);
  // Nothing that is posted from now on leaves before `until_ns`: what it sends is still being made.
  void HoldPosts(int64_t until_ns);

  DomainKind kind() const override { return options_.kind; }
  const std::string& name() const override { return options_.name; }
  ByteView address() const override { return address_; }
  const DomainLimits& limits() const override { return options_.limits; }
  Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) override;
  Status DeregisterMemory(const MemoryRegion& region) override;
  Result<PeerId> AddPeer(ByteView address) override;
  PeerState peer_state(PeerId peer) const override;
  void RemovePeer(PeerId peer) override;
  std::string peer_path(PeerId) const override { return "simulated network"; }

  PostResult PostWrite(const WriteRequest& request) override;
  PostResult PostSend(const SendRequest& request) override;
  PostResult PostReceive(const ReceiveRequest& request) override;
  size_t Poll(std::span<Completion> completions) override;
  int wait_fd() const override { return -1; }
  bool ArmWait() override { return true; }
  const std::string& last_error() const override { return last_error_; }
  void* MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override;

 private:
  friend class SimulatedNetwork;

  struct Region {
    MemoryRegion memory;
    Access access;
  };
  struct Peer {
    uint32_t domain = 0;
    uint64_t incarnation = 0;
    PeerState state = PeerState::kConnecting;
    std::optional<HandshakeCaller> handshake;
    bool refused = false;  // the other side has removed this one
    std::string cause;     // why posts are rejected when it is not ready
  };

  PostResult Take(const WriteRequest& request, bool is_send);
  PostResult Reject(std::string why);
  bool SaysAgain(PeerId peer);
  // Null: fine, else what is wrong.
  const char* CheckSource(const void* source, uint64_t length, uint64_t local_key) const;
  const char* CheckTarget(uint64_t address, uint64_t length, uint64_t remote_key) const;
  void Report(const Completion& completion, std::string cause = {});
  // Everything posted to it fails with the cause; a fault is reported once.
  void LosePeer(PeerId peer, ErrorCode code, const std::string& cause);
  PeerId PeerOf(uint32_t domain) const;
  // Messages that came before a receive was posted.
  void DeliverMessages();

  SimulatedNetwork& network_;
  SimulatedDomainOptions options_;
  uint32_t index_ = 0;
  bool left_ = false;
  uint64_t incarnation_ = 0;
  Bytes address_;
  std::optional<HandshakeAnswerer> answerer_;
  uint64_t next_key_ = 1;
  uint64_t key_salt_ = 0;
  std::map<uint64_t, Region> regions_;  // by key, local and remote the same
  std::vector<Peer> peers_;
  uint32_t outstanding_ = 0;
  int again_left_ = 0;
  int64_t posting_free_ns_ = 0;  // when the next request can be posted
  int64_t sending_free_ns_ = 0;  // when the port can send, or receive, the next byte
  int64_t receiving_free_ns_ = 0;
  // Of an interleaved NIC.
  struct Outgoing {
    uint32_t place;   // of the flight
    uint64_t flight;  // its id
    uint64_t offset;  // of its next segment
    int64_t posted_ns;
  };
  std::deque<Outgoing> unposted_;  // by posted_ns
  std::deque<Outgoing> outgoing_;  // the next one in front
  bool departing_ = false;         // a kDeparture is scheduled
  std::deque<ReceiveRequest> receives_;
  struct Message {
    PeerId peer;
    std::vector<std::byte> bytes;
  };
  std::deque<Message> messages_;
  std::deque<std::pair<Completion, std::string>> completions_;
  std::vector<WriteRequest> writes_;
  std::string last_error_;
};

}  // namespace jax_fabric::simulated

#endif  // JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_DOMAIN_H_
