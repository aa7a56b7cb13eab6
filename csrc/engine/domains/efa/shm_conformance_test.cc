// The efa domain over libfabric's provider "shm": what goes well. The provider swallows what does not: a refused write
// and a peer's death are not reported (docs/nics.md).
#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/efa/efa_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterEfaFabrics();

ConformanceCase Shm(NodePlacement placement) {
  return {.fabric = "shm",
          .placement = placement,
          .survives_bad_writes = false,
          .notices_death = false,
          .largest_write = 8 << 20,
          .checks_empty_writes = false};
}

INSTANTIATE_TEST_SUITE_P(Shm, DomainConformance,
                         testing::Values(Shm(NodePlacement::kOneThread), Shm(NodePlacement::kProcesses)), CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
