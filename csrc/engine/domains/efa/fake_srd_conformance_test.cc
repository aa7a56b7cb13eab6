// The efa domain over libfabric's provider "efa" on a fake SRD device: one thread with faults, processes.
#include "csrc/engine/domains/efa/fake_srd_case.h"
#include "csrc/engine/domains/efa/fake_srd_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterFakeSrdFabrics("efa");

INSTANTIATE_TEST_SUITE_P(FakeSrd, DomainConformance,
                         testing::Values(FakeSrdCase("faults", NodePlacement::kOneThread),
                                         FakeSrdCase("unordered", NodePlacement::kProcesses)),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
