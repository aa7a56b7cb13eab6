// The connectx domain over the double of libibverbs under the conformance suite: one thread, processes.
#include "csrc/engine/domains/connectx/connectx_case.h"
#include "csrc/engine/domains/connectx/connectx_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterVerbsDoubleFabrics();

INSTANTIATE_TEST_SUITE_P(ConnectX, DomainConformance,
                         testing::Values(ConnectXCase("double", NodePlacement::kOneThread, 8 << 20),
                                         ConnectXCase("double", NodePlacement::kProcesses, 8 << 20)),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
