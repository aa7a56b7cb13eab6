#include "csrc/base/index_stack.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace jax_fabric {
namespace {

TEST(IndexStack, LastInFirstOut) {
  IndexStack stack;
  EXPECT_EQ(stack.Pop(), std::nullopt);
  stack.Reserve(200);
  stack.Push(0);
  stack.Push(199);
  EXPECT_EQ(stack.Pop(), 199u);
  EXPECT_EQ(stack.Pop(), 0u);
  EXPECT_EQ(stack.Pop(), std::nullopt);
}

// No index is ever out twice: the owner's plain counter would race, which ThreadSanitizer sees.
TEST(IndexStack, ManyThreads) {
  constexpr uint32_t kIndices = 8;
  IndexStack stack;
  stack.Reserve(kIndices);
  std::array<int, kIndices> uses{};
  for (uint32_t i = 0; i < kIndices; ++i) stack.Push(i);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000;) {
        const std::optional<uint32_t> index = stack.Pop();
        if (!index.has_value()) continue;
        ++uses[*index];
        stack.Push(*index);
        ++i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int total = 0;
  for (const int count : uses) total += count;
  EXPECT_EQ(total, 40'000);
}

}  // namespace
}  // namespace jax_fabric
