// Linked dynamically, as cc_test does by default: each library of jax_fabric is a shared object
// here, which shows symbols that none of them defines.
#include <gtest/gtest.h>

#include "csrc/engine/transfer_engine.h"

namespace {

TEST(JaxFabric, AnEngineWithoutThreadsHasNothingToDo) {
  jax_fabric::EngineOptions options;
  options.threads = false;
  auto engine = jax_fabric::TransferEngine::Create(options);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  EXPECT_FALSE((*engine)->Step());
  const auto deadline = jax_fabric::Deadline::After((*engine)->clock(), 1'000'000);
  EXPECT_TRUE((*engine)->Close(deadline).has_value());
  EXPECT_TRUE((*engine)->Close(deadline).has_value());  // once more is fine
}

}  // namespace
