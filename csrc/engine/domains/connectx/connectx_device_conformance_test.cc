// The connectx domain over this machine's RDMA devices under the conformance suite.
#include "csrc/engine/domains/conformance/conformance_suite.h"
#include "csrc/engine/domains/connectx/connectx_device_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterDeviceFabric();

ConformanceCase Case(NodePlacement placement) {
  return {.fabric = "device", .placement = placement, .largest_write = 1 << 20, .checks_empty_writes = false};
}

INSTANTIATE_TEST_SUITE_P(ConnectX, DomainConformance,
                         testing::Values(Case(NodePlacement::kOneThread), Case(NodePlacement::kProcesses)), CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
