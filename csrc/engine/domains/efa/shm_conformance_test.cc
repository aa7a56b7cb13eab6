// The efa domain over libfabric's provider "shm", in processes: what goes well. The provider swallows what does not: a
// refused write and a peer's death are seen by heartbeats alone (docs/nics.md), and BUILD.bazel leaves their tests out.
#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/efa/efa_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterEfaFabrics();

INSTANTIATE_TEST_SUITE_P(Shm, DomainConformance,
                         testing::Values(ConformanceCase{.fabric = "shm",
                                                         .placement = NodePlacement::kProcesses,
                                                         .survives_bad_writes = false,
                                                         .notices_death = false,
                                                         .largest_write = 8 << 20,
                                                         .checks_empty_writes = false}),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
