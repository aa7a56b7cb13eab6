// A domain that registers little memory at once: what is longer has to come in pieces.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_SMALL_REGIONS_DOMAIN_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_SMALL_REGIONS_DOMAIN_H_

#include <memory>
#include <string>
#include <utility>

#include "csrc/engine/domain.h"

namespace jax_fabric::conformance {

class SmallRegionsDomain final : public Domain {
 public:
  SmallRegionsDomain(std::unique_ptr<Domain> domain, uint64_t max_region_bytes)
      : domain_(std::move(domain)), limits_(domain_->limits()) {
    limits_.max_region_bytes = max_region_bytes;
  }

  DomainKind kind() const override { return domain_->kind(); }
  const std::string& name() const override { return domain_->name(); }
  ByteView address() const override { return domain_->address(); }
  const DomainLimits& limits() const override { return limits_; }
  Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) override {
    if (length > limits_.max_region_bytes) {
      return MakeError(ErrorCode::kInvalidArgument, "{}: a registration of {} bytes: at most {} at once", name(),
                       length, limits_.max_region_bytes);
    }
    return domain_->RegisterMemory(address, length, kind, access);
  }
  Status DeregisterMemory(const MemoryRegion& region) override { return domain_->DeregisterMemory(region); }
  Result<PeerId> AddPeer(ByteView address) override { return domain_->AddPeer(address); }
  PeerState peer_state(PeerId peer) const override { return domain_->peer_state(peer); }
  void RemovePeer(PeerId peer) override { domain_->RemovePeer(peer); }
  PostResult PostWrite(const WriteRequest& request) override { return domain_->PostWrite(request); }
  PostResult PostPages(const PagesRequest& request, uint32_t& posted) override {
    return domain_->PostPages(request, posted);
  }
  PostResult PostSend(const SendRequest& request) override { return domain_->PostSend(request); }
  PostResult PostReceive(const ReceiveRequest& request) override { return domain_->PostReceive(request); }
  size_t Poll(std::span<Completion> completions) override { return domain_->Poll(completions); }
  int wait_fd() const override { return domain_->wait_fd(); }
  bool ArmWait() override { return domain_->ArmWait(); }
  const std::string& last_error() const override { return domain_->last_error(); }
  void* MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override {
    return domain_->MapRemote(peer, remote_address, remote_key, length);
  }

 private:
  const std::unique_ptr<Domain> domain_;
  DomainLimits limits_;
};

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_SMALL_REGIONS_DOMAIN_H_
