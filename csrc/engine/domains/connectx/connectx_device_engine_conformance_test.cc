// The engine over the connectx domain over this machine's RDMA devices.
#include "csrc/engine/domains/conformance/engine_suite.h"
#include "csrc/engine/domains/connectx/connectx_device_fabric.h"

namespace jax_fabric::conformance {
namespace {

const bool kRegistered = RegisterDeviceFabric();

INSTANTIATE_TEST_SUITE_P(
    ConnectX, EngineConformance,
    ::testing::Values(EngineCase{.fabric = "device", .nics = 1, .largest_write = 1 << 20},
                      EngineCase{.fabric = "device", .nics = 2, .threads = true, .largest_write = 1 << 20}),
    EngineCaseName);

}  // namespace
}  // namespace jax_fabric::conformance
