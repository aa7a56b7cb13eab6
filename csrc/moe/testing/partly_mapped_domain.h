// A domain that reaches the memory of only some peers by stores, so that tests can have both paths on one fabric.
#ifndef JAX_FABRIC_MOE_TESTING_PARTLY_MAPPED_DOMAIN_H_
#define JAX_FABRIC_MOE_TESTING_PARTLY_MAPPED_DOMAIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "csrc/engine/testing/forwarding_domain.h"
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

class PartlyMappedDomain final : public ForwardingDomain {
 public:
  PartlyMappedDomain(std::unique_ptr<Domain> domain, std::function<bool()> maps)
      : ForwardingDomain(std::move(domain)), maps_(std::move(maps)) {}

  PostResult PostWrite(const WriteRequest& request) override {
    // A NIC's writes are no accesses of this program. Announcements are read while they are written, and prove
    // themselves; every other write is as visible to ThreadSanitizer as it should be.
    const bool announcement = request.length == AnnouncementRing::kEntryBytes;
    if (announcement) IgnoreWrites(true);
    const PostResult result = domain().PostWrite(request);
    if (announcement) IgnoreWrites(false);
    return result;
  }
  void* MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override {
    return maps_() ? domain().MapRemote(peer, remote_address, remote_key, length) : nullptr;
  }

 private:
  const std::function<bool()> maps_;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_PARTLY_MAPPED_DOMAIN_H_
