// The connectx domain over the double of libibverbs under the conformance suite: one thread, processes, and
// threads and processes with faults.
#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/connectx/connectx_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterVerbsDoubleFabrics();

ConformanceCase Case(const char* fabric, NodePlacement placement) {
  return {.fabric = fabric, .placement = placement, .largest_write = 8 << 20, .checks_empty_writes = false};
}

INSTANTIATE_TEST_SUITE_P(ConnectX, DomainConformance,
                         testing::Values(Case("double", NodePlacement::kOneThread),
                                         Case("double", NodePlacement::kProcesses),
                                         Case("faults", NodePlacement::kThreads),
                                         Case("faults", NodePlacement::kProcesses)),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
