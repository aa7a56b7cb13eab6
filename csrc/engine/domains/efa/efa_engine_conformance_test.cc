// The engine over the efa domain over TCP: stepped, and with threads.
#include "csrc/engine/domains/conformance/engine_suite.h"
#include "csrc/engine/domains/efa/efa_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterEfaFabrics();

INSTANTIATE_TEST_SUITE_P(Efa, EngineConformance,
                         ::testing::Values(EngineCase{.fabric = "tcp", .nics = 1},
                                           EngineCase{.fabric = "tcp", .nics = 2, .threads = true}),
                         EngineCaseName);

}  // namespace
}  // namespace jax_fabric::conformance
