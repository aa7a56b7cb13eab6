// The local domain under the conformance suite: one thread, threads, processes.
#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/local/local_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterLocalFabrics();

INSTANTIATE_TEST_SUITE_P(Local, DomainConformance,
                         testing::Values(ConformanceCase{"local", NodePlacement::kOneThread},
                                         ConformanceCase{"local", NodePlacement::kThreads},
                                         ConformanceCase{"local", NodePlacement::kProcesses},
                                         ConformanceCase{"local_process_vm", NodePlacement::kProcesses},
                                         ConformanceCase{"local_bounced", NodePlacement::kProcesses}),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
