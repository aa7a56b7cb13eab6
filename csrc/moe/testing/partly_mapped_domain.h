// A domain that reaches the memory of only some peers by stores, so that tests can have both paths on one fabric.
#ifndef JAX_FABRIC_MOE_TESTING_PARTLY_MAPPED_DOMAIN_H_
#define JAX_FABRIC_MOE_TESTING_PARTLY_MAPPED_DOMAIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "csrc/engine/domain.h"
#include "csrc/moe/announcement_ring.h"

#if defined(__SANITIZE_THREAD__)
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace jax_fabric::moe::testing {

inline void IgnoreWrites([[maybe_unused]] bool ignore) {
#if defined(__SANITIZE_THREAD__)
  ignore ? AnnotateIgnoreWritesBegin(__FILE__, __LINE__) : AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
#endif
}

class PartlyMappedDomain final : public Domain {
 public:
  PartlyMappedDomain(std::unique_ptr<Domain> domain, std::function<bool()> maps)
      : domain_(std::move(domain)), maps_(std::move(maps)) {}

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
  PostResult PostWrite(const WriteRequest& request) override {
    // A NIC's writes are no accesses of this program. Announcements are read while they are written, and prove
    // themselves; every other write is as visible to ThreadSanitizer as it should be.
    const bool announcement = request.length == AnnouncementRing::kEntryBytes;
    if (announcement) IgnoreWrites(true);
    const PostResult result = domain_->PostWrite(request);
    if (announcement) IgnoreWrites(false);
    return result;
  }
  PostResult PostSend(const SendRequest& request) override { return domain_->PostSend(request); }
  PostResult PostReceive(const ReceiveRequest& request) override { return domain_->PostReceive(request); }
  size_t Poll(std::span<Completion> completions) override { return domain_->Poll(completions); }
  int wait_fd() const override { return domain_->wait_fd(); }
  bool ArmWait() override { return domain_->ArmWait(); }
  const std::string& last_error() const override { return domain_->last_error(); }
  void* MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override {
    return maps_() ? domain_->MapRemote(peer, remote_address, remote_key, length) : nullptr;
  }

 private:
  const std::unique_ptr<Domain> domain_;
  const std::function<bool()> maps_;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_PARTLY_MAPPED_DOMAIN_H_
