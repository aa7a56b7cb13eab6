// The local domain under the conformance suite: one thread, threads, processes.
#include <algorithm>

#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/local/local_domain.h"

namespace jax_fabric::conformance {
namespace {

class LocalFabric final : public ConformanceFabric {
 public:
  Result<std::unique_ptr<Domain>> CreateDomain(const DomainShape& shape) override {
    LocalDomainOptions options;
    if (shape.max_outstanding > 0) {
      options.max_outstanding = options.immediate_slots = options.message_slots = shape.max_outstanding;
    }
    if (shape.max_receives > 0) options.max_receives = shape.max_receives;
    return CreateLocalDomain(options);
  }

  Result<FabricMemory> Allocate(uint64_t length) override {
    JF_ASSIGN_OR_RETURN(SharedMemory memory, AllocateShared(length));
    auto owner = std::make_shared<SharedMemory>(std::move(memory));
    return FabricMemory{owner->data(), owner};
  }
};

const bool kRegistered = RegisterConformanceFabric("local", [] { return std::make_unique<LocalFabric>(); });

INSTANTIATE_TEST_SUITE_P(Local, DomainConformance,
                         testing::Values(ConformanceCase{"local", NodePlacement::kOneThread},
                                         ConformanceCase{"local", NodePlacement::kThreads},
                                         ConformanceCase{"local", NodePlacement::kProcesses}),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
