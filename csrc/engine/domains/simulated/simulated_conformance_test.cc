// The simulated domain under the conformance suite.
#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/simulated/simulated_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterSimulatedFabrics();

INSTANTIATE_TEST_SUITE_P(Simulated, DomainConformance,
                         ::testing::Values(ConformanceCase{"simulated_calm"}, ConformanceCase{"simulated_unordered"},
                                           ConformanceCase{"simulated_lossy"}),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
