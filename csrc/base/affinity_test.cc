#include "csrc/base/affinity.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace jax_fabric {
namespace {

std::vector<int> Cores() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
  }
  return cores;
}

TEST(ScopedAffinity, ThreadsThatAreStartedMeanwhileKeepIt) {
  const std::vector<int> before = Cores();
  const std::vector<int> wanted = {before.back()};
  std::vector<int> of_new_thread;
  {
    auto pinned = ScopedAffinity::Pin(wanted);
    ASSERT_TRUE(pinned.has_value()) << pinned.error().message;
    EXPECT_EQ(Cores(), wanted);
    std::thread([&] { of_new_thread = Cores(); }).join();
  }
  EXPECT_EQ(of_new_thread, wanted);
  EXPECT_EQ(Cores(), before);
}

TEST(ScopedAffinity, NoCoresChangeNothing) {
  const std::vector<int> before = Cores();
  auto pinned = ScopedAffinity::Pin({});
  ASSERT_TRUE(pinned.has_value());
  EXPECT_EQ(Cores(), before);
}

TEST(ScopedAffinity, CoresThatAreNotThereAreErrors) {
  const std::vector<int> before = Cores();
  for (const int cpu : {-1, CPU_SETSIZE, CPU_SETSIZE - 1}) {
    const auto pinned = ScopedAffinity::Pin(std::vector<int>{cpu});
    ASSERT_FALSE(pinned.has_value()) << cpu;
    EXPECT_EQ(pinned.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(pinned.error().message.find(std::to_string(cpu)), std::string::npos) << pinned.error().message;
  }
  EXPECT_EQ(Cores(), before);
}

}  // namespace
}  // namespace jax_fabric
