// The engine over the local domain, with 1 to 4 of them a group: stepped, and with threads.
#include "csrc/engine/domains/conformance/engine_suite.h"
#include "csrc/engine/domains/local/local_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterLocalFabrics();

INSTANTIATE_TEST_SUITE_P(Local, EngineConformance,
                         ::testing::Values(EngineCase{.fabric = "local", .nics = 1},
                                           EngineCase{.fabric = "local", .nics = 1, .threads = true},
                                           EngineCase{.fabric = "local", .nics = 4, .threads = true}),
                         EngineCaseName);

}  // namespace
}  // namespace jax_fabric::conformance
