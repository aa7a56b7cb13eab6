// The engine over the efa domain over libfabric's provider "efa" on a fake SRD device: stepped, and with threads.
#include "csrc/engine/domains/conformance/engine_suite.h"
#include "csrc/engine/domains/efa/fake_srd_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterFakeSrdFabrics("efa");

INSTANTIATE_TEST_SUITE_P(FakeSrd, EngineConformance,
                         ::testing::Values(EngineCase{.fabric = "unordered", .nics = 1},
                                           EngineCase{.fabric = "faults", .nics = 2, .threads = true}),
                         EngineCaseName);

}  // namespace
}  // namespace jax_fabric::conformance
