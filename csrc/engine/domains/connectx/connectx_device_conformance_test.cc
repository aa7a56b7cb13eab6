// The connectx domain over this machine's RDMA devices under the conformance suite.
#include "csrc/engine/domains/connectx/connectx_case.h"
#include "csrc/engine/domains/connectx/connectx_device_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterDeviceFabric();

INSTANTIATE_TEST_SUITE_P(ConnectX, DomainConformance,
                         testing::Values(ConnectXCase("device", NodePlacement::kOneThread, 1 << 20),
                                         ConnectXCase("device", NodePlacement::kProcesses, 1 << 20)),
                         CaseName);

}  // namespace
}  // namespace jax_fabric::conformance
