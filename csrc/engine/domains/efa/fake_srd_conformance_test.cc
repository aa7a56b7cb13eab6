// The efa domain over libfabric's provider "efa" on a fake SRD device under the conformance suite.
#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/efa/fake_srd_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterFakeSrdFabrics("efa");

ConformanceCase Case(const char* fabric, NodePlacement placement) {
  // NICs do not look at where a write without bytes would go.
  return {.fabric = fabric, .placement = placement, .largest_write = 8 << 20, .checks_empty_writes = false};
}

INSTANTIATE_TEST_SUITE_P(FakeSrd, DomainConformance,
                         testing::Values(Case("unordered", NodePlacement::kOneThread),
                                         Case("faults", NodePlacement::kOneThread),
                                         Case("unordered", NodePlacement::kProcesses),
                                         Case("faults", NodePlacement::kProcesses)),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
