#include "csrc/engine/poller_set.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace jax_fabric {
namespace {

using Urgency = PollerSet::Urgency;

TEST(PollerSet, CallsEachOnceAPoll) {
  PollerSet set;
  int busy = 0, idle = 0;
  EXPECT_FALSE(set.Poll());
  auto a = set.Add([&] { return ++busy < 3; }, Urgency::kRelaxed);
  auto b = set.Add([&] { return ++idle < 0; }, Urgency::kRelaxed);
  EXPECT_TRUE(set.Poll());
  EXPECT_TRUE(set.Poll());
  EXPECT_FALSE(set.Poll());
  EXPECT_EQ(busy, 3);
  EXPECT_EQ(idle, 3);
  a.reset();
  EXPECT_FALSE(set.Poll());
  EXPECT_EQ(busy, 3);
  EXPECT_EQ(idle, 4);
}

TEST(PollerSet, KnowsWhetherAnyIsUrgent) {
  PollerSet set;
  auto relaxed = set.Add([] { return false; }, Urgency::kRelaxed);
  EXPECT_FALSE(set.urgent());
  auto urgent = set.Add([] { return false; }, Urgency::kUrgent);
  EXPECT_TRUE(set.urgent());
  EXPECT_EQ(set.size(), 2u);
  urgent->Stop();
  urgent->Stop();
  EXPECT_FALSE(set.urgent());
  urgent.reset();
  EXPECT_EQ(set.size(), 1u);
  relaxed.reset();
  EXPECT_EQ(set.size(), 0u);
}

TEST(PollerSet, MayBeStoppedAndAddedToByWhatItCalls) {
  PollerSet set;
  int first = 0, second = 0;
  std::unique_ptr<Poller> one, other;
  one = set.Add(
      [&] {
        ++first;
        other = set.Add([&] { return ++second, false; }, Urgency::kRelaxed);
        one.reset();
        return true;
      },
      Urgency::kUrgent);
  EXPECT_TRUE(set.Poll());
  EXPECT_FALSE(set.Poll());
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
  EXPECT_FALSE(set.urgent());
}

// Afterwards what it uses may go: a call later on would be a race that the sanitizers see.
TEST(PollerSet, NothingIsCalledOnceItsPollerIsGone) {
  PollerSet set;
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop) {
      set.Poll();
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 300; ++round) {
    auto calls = std::make_unique<uint64_t>(0);
    std::atomic<bool> called{false};
    auto poll = [&] {
      called.store(true, std::memory_order_relaxed);
      return ++*calls % 2 == 0;
    };
    auto poller = set.Add(poll, round % 3 == 0 ? Urgency::kUrgent : Urgency::kRelaxed);
    while (round % 2 == 0 && !called.load(std::memory_order_relaxed)) std::this_thread::yield();
    poller.reset();
    EXPECT_EQ(*calls > 0, called);
  }
  stop = true;
  thread.join();
  EXPECT_FALSE(set.urgent());
}

}  // namespace
}  // namespace jax_fabric
