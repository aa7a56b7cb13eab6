// The same as fake_srd_engine_conformance_test over the provider's "efa-direct", the device's queues as they are.
#include "csrc/engine/domains/conformance/engine_suite.h"
#include "csrc/engine/domains/efa/fake_srd_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterFakeSrdFabrics("efa-direct");

INSTANTIATE_TEST_SUITE_P(FakeSrdDirect, EngineConformance,
                         ::testing::Values(EngineCase{.fabric = "unordered", .nics = 1},
                                           EngineCase{.fabric = "faults", .nics = 2, .threads = true}),
                         EngineCaseName);

}  // namespace
}  // namespace jax_fabric::conformance
