// A node that is driven by whoever calls it.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_DIRECT_NODE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_DIRECT_NODE_H_

#include <memory>
#include <vector>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/domains/conformance/node.h"

namespace jax_fabric::conformance {

class DirectNode final : public Node {
 public:
  static Result<std::unique_ptr<DirectNode>> Create(std::shared_ptr<ConformanceFabric> fabric,
                                                    const DomainShape& shape);

  Bytes Address() override;
  DomainLimits Limits() override { return domain_->limits(); }
  Result<PeerId> AddPeer(ByteView address) override { return domain_->AddPeer(address); }
  PeerState State(PeerId peer) override { return domain_->peer_state(peer); }
  void RemovePeer(PeerId peer) override { domain_->RemovePeer(peer); }
  std::string LastError() override { return domain_->last_error(); }

  Result<uint64_t> Allocate(uint64_t length) override;
  Result<MemoryRegion> Register(uint64_t address, uint64_t length, Access access) override;
  Status Deregister(const MemoryRegion& region) override { return domain_->DeregisterMemory(region); }

  PostOutcome PostWrites(std::span<const WriteRequest> requests) override;
  PostOutcome PostSends(std::span<const SendRequest> requests) override;
  PostOutcome PostReceives(std::span<const ReceiveRequest> requests) override;
  std::vector<Completion> Poll() override;

  void Fill(uint64_t address, uint64_t length, uint64_t seed) override;
  void FillByte(uint64_t address, uint64_t length, uint8_t value) override;
  uint64_t Check(uint64_t address, uint64_t length, uint64_t seed) override;
  uint64_t CheckByte(uint64_t address, uint64_t length, uint8_t value) override;
  uint64_t MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override;

  void Kill() override { domain_.reset(); }
  Domain* domain() override { return domain_.get(); }

 private:
  DirectNode(std::shared_ptr<ConformanceFabric> fabric, std::unique_ptr<Domain> domain);

  // The domain goes first, then the memory that its peers might still write to, then the network.
  const std::shared_ptr<ConformanceFabric> fabric_;
  std::vector<FabricMemory> memory_;
  std::unique_ptr<Domain> domain_;
};

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_DIRECT_NODE_H_
