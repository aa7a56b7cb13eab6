// The same as connectx_conformance_test with injected faults: threads, processes.
#include "csrc/engine/domains/connectx/connectx_case.h"
#include "csrc/engine/domains/connectx/connectx_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterVerbsDoubleFabrics();

INSTANTIATE_TEST_SUITE_P(ConnectX, DomainConformance,
                         testing::Values(ConnectXCase("faults", NodePlacement::kThreads, 8 << 20),
                                         ConnectXCase("faults", NodePlacement::kProcesses, 8 << 20)),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
