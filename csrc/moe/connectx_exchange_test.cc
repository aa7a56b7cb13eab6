// Exchanges over the connectx domain over the double of libibverbs.
#include "csrc/engine/domains/connectx/connectx_fabric.h"
#include "csrc/moe/testing/exchange_suite.h"

namespace jax_fabric::moe::testing {
namespace {

const bool kRegistered = conformance::RegisterVerbsDoubleFabrics();

INSTANTIATE_TEST_SUITE_P(ConnectX, MoeExchanges, ::testing::Values("double", "faults"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace jax_fabric::moe::testing
