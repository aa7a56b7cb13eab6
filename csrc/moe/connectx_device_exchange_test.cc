// Exchanges over the connectx domain over this machine's RDMA devices.
#include "csrc/engine/domains/connectx/connectx_device_fabric.h"
#include "csrc/moe/testing/exchange_suite.h"

namespace jax_fabric::moe::testing {
namespace {

const bool kRegistered = conformance::RegisterDeviceFabric();

INSTANTIATE_TEST_SUITE_P(ConnectX, MoeExchanges, ::testing::Values("device"));

}  // namespace
}  // namespace jax_fabric::moe::testing
