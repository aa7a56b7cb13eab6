// The engine over the connectx domain over the double of libibverbs: stepped, and with threads.
#include "csrc/engine/domains/conformance/engine_suite.h"
#include "csrc/engine/domains/connectx/connectx_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterVerbsDoubleFabrics();

INSTANTIATE_TEST_SUITE_P(ConnectX, EngineConformance,
                         ::testing::Values(EngineCase{.fabric = "double", .nics = 1},
                                           EngineCase{.fabric = "faults", .nics = 2, .threads = true}),
                         EngineCaseName);

}  // namespace
}  // namespace jax_fabric::conformance
