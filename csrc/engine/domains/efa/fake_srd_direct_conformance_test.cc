// The same as fake_srd_conformance_test over the provider's "efa-direct", the device's queues as they are.
#include "csrc/engine/domains/efa/fake_srd_case.h"
#include "csrc/engine/domains/efa/fake_srd_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterFakeSrdFabrics("efa-direct");

INSTANTIATE_TEST_SUITE_P(FakeSrdDirect, DomainConformance,
                         testing::Values(FakeSrdCase("unordered", NodePlacement::kOneThread),
                                         FakeSrdCase("faults", NodePlacement::kProcesses)),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
