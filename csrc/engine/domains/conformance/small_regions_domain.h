// A domain that registers little memory at once: what is longer has to come in pieces.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_SMALL_REGIONS_DOMAIN_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_SMALL_REGIONS_DOMAIN_H_

#include <memory>
#include <utility>

#include "csrc/engine/domain.h"
#include "csrc/engine/testing/forwarding_domain.h"

namespace jax_fabric::conformance {

class SmallRegionsDomain final : public ForwardingDomain {
 public:
  SmallRegionsDomain(std::unique_ptr<Domain> domain, uint64_t max_region_bytes)
      : ForwardingDomain(std::move(domain)), limits_(ForwardingDomain::limits()) {
    limits_.max_region_bytes = max_region_bytes;
  }

  const DomainLimits& limits() const override { return limits_; }
  Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) override {
    if (length > limits_.max_region_bytes) {
      return MakeError(ErrorCode::kInvalidArgument, "{}: a registration of {} bytes: at most {} at once", name(),
                       length, limits_.max_region_bytes);
    }
    return domain().RegisterMemory(address, length, kind, access);
  }
  PostResult PostPages(const PagesRequest& request, uint32_t& posted) override {
    return domain().PostPages(request, posted);
  }

 private:
  DomainLimits limits_;
};

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_SMALL_REGIONS_DOMAIN_H_
