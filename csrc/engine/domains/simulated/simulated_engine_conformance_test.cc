// The engine over the simulated domain, with 1 to 4 NICs.
#include "csrc/engine/domains/conformance/engine_suite.h"
#include "csrc/engine/domains/simulated/simulated_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterSimulatedFabrics();

INSTANTIATE_TEST_SUITE_P(Simulated, EngineConformance,
                         ::testing::Values(EngineCase{.fabric = "simulated_calm", .nics = 1},
                                           EngineCase{.fabric = "simulated_unordered", .nics = 1},
                                           EngineCase{.fabric = "simulated_unordered", .nics = 4},
                                           EngineCase{.fabric = "simulated_lossy", .nics = 2},
                                           EngineCase{.fabric = "simulated_lossy", .nics = 3}),
                         EngineCaseName);

}  // namespace
}  // namespace jax_fabric::conformance
