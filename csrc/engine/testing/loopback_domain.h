// LoopbackDomain: the Domain contract at its most annoying, inside one process, for tests of the engine: any order by
// seed, "again" at will, failures on request. Everything is serialised by one mutex of the network.
#ifndef JAX_FABRIC_ENGINE_TESTING_LOOPBACK_DOMAIN_H_
#define JAX_FABRIC_ENGINE_TESTING_LOOPBACK_DOMAIN_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "csrc/engine/domain.h"

namespace jax_fabric::testing {

class LoopbackDomain;

class LoopbackNetwork {
 public:
  explicit LoopbackNetwork(uint64_t seed) : random_(seed) {}

 private:
  friend class LoopbackDomain;
  std::recursive_mutex mutex_;
  std::mt19937_64 random_;
  std::vector<LoopbackDomain*> domains_;  // null: gone
};

class LoopbackDomain final : public Domain {
 public:
  struct Options {
    std::string name = "loopback";
    DomainKind kind = DomainKind::kSimulated;
    DomainLimits limits = {.max_write_bytes = uint64_t{1} << 40,
                           .max_message_bytes = 1024,
                           .max_region_bytes = uint64_t{1} << 40,
                           .max_outstanding = 64,
                           .max_receives = 64};
    // False: payloads are only checked, so that tests may use addresses that do not exist.
    bool copy = true;
    // Of each posted request at each Poll.
    double delivery_probability = 1.0;
  };
  // May be changed between steps (or, with threads, before they start).
  struct Faults {
    double again_probability = 0;
    std::set<PeerId> again;   // posts to them are never taken
    std::set<PeerId> silent;  // posts to them are taken and never complete, until the peer is removed
    std::set<PeerId> never_ready;
    int fail_post = -1;    // counts down with each post taken; the one at 0 completes with an error
    int reject_post = -1;  // likewise kRejected
  };

  LoopbackDomain(LoopbackNetwork& network, Options options);
  ~LoopbackDomain() override;

  Faults& faults() { return faults_; }
  const std::vector<WriteRequest>& writes() const { return writes_; }  // all that were taken
  void ForgetWrites() { writes_.clear(); }
  size_t regions() const { return regions_.size(); }
  void KillPeer(PeerId peer, const std::string& cause);

  DomainKind kind() const override { return options_.kind; }
  const std::string& name() const override { return options_.name; }
  ByteView address() const override { return address_; }
  const DomainLimits& limits() const override { return options_.limits; }
  Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) override;
  Status DeregisterMemory(const MemoryRegion& region) override;
  Result<PeerId> AddPeer(ByteView address) override;
  PeerState peer_state(PeerId peer) const override;
  void RemovePeer(PeerId peer) override;
  PostResult PostWrite(const WriteRequest& request) override;
  PostResult PostSend(const SendRequest& request) override;
  PostResult PostReceive(const ReceiveRequest& request) override;
  size_t Poll(std::span<Completion> completions) override;
  int wait_fd() const override { return -1; }
  bool ArmWait() override { return true; }
  const std::string& last_error() const override { return last_error_; }
  void* MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override;

 private:
  struct Region {
    MemoryRegion memory;
    Access access;
  };
  struct Peer {
    Bytes address;
    uint32_t domain;
    PeerState state;
    std::string cause;  // why posts are rejected when it is not ready
  };
  struct Pending {
    WriteRequest request;
    bool is_send = false;
    bool fails = false;
    bool silent = false;
  };

  PostResult Take(const WriteRequest& request, bool is_send);
  // False: the receiver has no buffer yet.
  bool Deliver(const Pending& pending);
  void Complete(const Pending& pending, ErrorCode code, const std::string& error);
  void FailPending(PeerId peer, const std::string& error);
  const Region* FindRemote(uint32_t domain, uint64_t key, uint64_t address, uint64_t length) const;

  LoopbackNetwork& network_;
  const Options options_;
  const uint32_t index_;
  Bytes address_;
  Faults faults_;
  uint64_t next_key_ = 1;
  std::map<uint64_t, Region> regions_;  // by key, local and remote the same
  std::vector<Peer> peers_;
  std::vector<Pending> pending_;
  std::deque<ReceiveRequest> receives_;
  std::vector<std::pair<Completion, std::string>> inbox_;
  std::vector<WriteRequest> writes_;
  std::string last_error_;
};

}  // namespace jax_fabric::testing

#endif  // JAX_FABRIC_ENGINE_TESTING_LOOPBACK_DOMAIN_H_
