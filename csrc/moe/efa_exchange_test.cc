// Exchanges over the efa domain over TCP.
#include "csrc/engine/domains/efa/efa_fabric.h"
#include "csrc/moe/testing/exchange_suite.h"

namespace jax_fabric::moe::testing {
namespace {

const bool kRegistered = conformance::RegisterEfaFabrics();

INSTANTIATE_TEST_SUITE_P(Efa, MoeExchanges, ::testing::Values("tcp"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace jax_fabric::moe::testing
