// The efa domain over TCP under the conformance suite: one thread, processes.
#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/efa/efa_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterEfaFabrics();

constexpr uint64_t kLargest = 8 << 20;

INSTANTIATE_TEST_SUITE_P(Efa, DomainConformance,
                         testing::Values(ConformanceCase{"tcp", NodePlacement::kOneThread, true, true, true, kLargest},
                                         ConformanceCase{"tcp", NodePlacement::kProcesses, true, true, true, kLargest}),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
