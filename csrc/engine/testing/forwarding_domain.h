// A domain that hands everything on to another one. Tests derive from it and change what they are about.
#ifndef JAX_FABRIC_ENGINE_TESTING_FORWARDING_DOMAIN_H_
#define JAX_FABRIC_ENGINE_TESTING_FORWARDING_DOMAIN_H_

#include <memory>
#include <string>
#include <utility>

#include "csrc/engine/domain.h"

namespace jax_fabric {

// Pages are not handed on: they come as one PostWrite each, so that a PostWrite of one's own sees them all.
class ForwardingDomain : public Domain {
 public:
  explicit ForwardingDomain(std::unique_ptr<Domain> domain) : domain_(std::move(domain)) {}

  DomainKind kind() const override { return domain_->kind(); }
  const std::string& name() const override { return domain_->name(); }
  ByteView address() const override { return domain_->address(); }
  const DomainLimits& limits() const override { return domain_->limits(); }
  Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) override {
    return domain_->RegisterMemory(address, length, kind, access);
  }
  Status DeregisterMemory(const MemoryRegion& region) override { return domain_->DeregisterMemory(region); }
  Result<PeerId> AddPeer(ByteView address) override { return domain_->AddPeer(address); }
  PeerState peer_state(PeerId peer) const override { return domain_->peer_state(peer); }
  void RemovePeer(PeerId peer) override { domain_->RemovePeer(peer); }
  std::string peer_path(PeerId peer) const override { return domain_->peer_path(peer); }
  PostResult PostWrite(const WriteRequest& request) override { return domain_->PostWrite(request); }
  PostResult PostSend(const SendRequest& request) override { return domain_->PostSend(request); }
  PostResult PostReceive(const ReceiveRequest& request) override { return domain_->PostReceive(request); }
  size_t Poll(std::span<Completion> completions) override { return domain_->Poll(completions); }
  int wait_fd() const override { return domain_->wait_fd(); }
  bool ArmWait() override { return domain_->ArmWait(); }
  const std::string& last_error() const override { return domain_->last_error(); }
  void* MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override {
    return domain_->MapRemote(peer, remote_address, remote_key, length);
  }

 protected:
  Domain& domain() const { return *domain_; }

 private:
  const std::unique_ptr<Domain> domain_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_TESTING_FORWARDING_DOMAIN_H_
