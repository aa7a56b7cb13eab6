// The local domain as a fabric of the conformance suites.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_FABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_FABRIC_H_

#include <memory>
#include <utility>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/domains/local/local_domain.h"

namespace jax_fabric::conformance {

class LocalFabric final : public ConformanceFabric {
 public:
  Result<std::unique_ptr<Domain>> CreateDomain(const DomainShape& shape) override {
    LocalDomainOptions options;
    if (shape.max_outstanding > 0) {
      options.max_outstanding = options.immediate_slots = options.message_slots = shape.max_outstanding;
    }
    options.key = ConformanceKey();
    if (shape.max_receives > 0) options.max_receives = shape.max_receives;
    return CreateLocalDomain(options);
  }

  Result<FabricMemory> Allocate(uint64_t length) override {
    JF_ASSIGN_OR_RETURN(SharedMemory memory, AllocateShared(length));
    auto owner = std::make_shared<SharedMemory>(std::move(memory));
    return FabricMemory{owner->data(), owner};
  }
};

inline bool RegisterLocalFabric() {
  return RegisterConformanceFabric("local", [] { return std::make_unique<LocalFabric>(); });
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_FABRIC_H_
