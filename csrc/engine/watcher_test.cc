#include "csrc/engine/watcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace jax_fabric {
namespace {

void Store(Watcher& watcher, uint64_t value) {
  std::atomic_ref(*watcher.word_address()).store(value, std::memory_order_release);
}

TEST(Watcher, SeesOldAndNew) {
  PollerSet set;
  std::vector<std::pair<uint64_t, uint64_t>> seen;
  auto watcher =
      Watcher::Watch(set, 5, [&](uint64_t old_value, uint64_t value) { seen.emplace_back(old_value, value); });
  EXPECT_FALSE(set.Poll());
  Store(*watcher, 7);
  EXPECT_TRUE(set.Poll());
  EXPECT_FALSE(set.Poll());
  Store(*watcher, 8);
  Store(*watcher, ~uint64_t{0});
  EXPECT_TRUE(set.Poll());
  EXPECT_EQ(seen, (std::vector<std::pair<uint64_t, uint64_t>>{{5, 7}, {7, ~uint64_t{0}}}));
}

TEST(Watcher, UsesMemoryThatItIsGiven) {
  PollerSet set;
  auto memory = std::make_shared<uint64_t>(99);
  const std::weak_ptr<uint64_t> kept = memory;
  std::vector<std::pair<uint64_t, uint64_t>> seen;
  auto watcher = Watcher::Watch(
      set, 5, [&](uint64_t old_value, uint64_t value) { seen.emplace_back(old_value, value); }, std::move(memory));
  EXPECT_EQ(watcher->word_address(), kept.lock().get());
  EXPECT_EQ(watcher->word().get(), kept.lock().get());
  EXPECT_FALSE(set.Poll());
  std::atomic_ref(*kept.lock()).store(6, std::memory_order_release);
  EXPECT_TRUE(set.Poll());
  EXPECT_EQ(seen, (std::vector<std::pair<uint64_t, uint64_t>>{{5, 6}}));
  watcher.reset();
  set.Poll();  // drops what was removed
  EXPECT_TRUE(kept.expired());
}

TEST(Watcher, WordsHaveTheirOwnCacheLines) {
  PollerSet set;
  auto a = Watcher::Watch(set, 0, [](uint64_t, uint64_t) {});
  auto b = Watcher::Watch(set, 0, [](uint64_t, uint64_t) {});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a->word_address()) % 64, 0u);
  EXPECT_NE(reinterpret_cast<uintptr_t>(a->word_address()) / 64, reinterpret_cast<uintptr_t>(b->word_address()) / 64);
}

TEST(Watcher, MayBeDestroyedByItsCallback) {
  PollerSet set;
  std::unique_ptr<Watcher> watcher;
  int calls = 0;
  watcher = Watcher::Watch(set, 0, [&](uint64_t, uint64_t) {
    ++calls;
    watcher.reset();
  });
  Store(*watcher, 1);
  EXPECT_TRUE(set.Poll());
  EXPECT_EQ(set.size(), 0u);
  EXPECT_FALSE(set.Poll());
  EXPECT_EQ(calls, 1);
}

// After the destructor the callback's state may go: a call later on would be a race that the sanitizer sees.
TEST(Watcher, NoCallbackAfterDestruction) {
  PollerSet set;
  std::atomic<bool> stop{false};
  std::thread poller([&] {
    while (!stop) {
      set.Poll();
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 300; ++round) {
    auto calls = std::make_unique<int>(0);
    auto watcher = Watcher::Watch(set, 0, [&](uint64_t, uint64_t) { ++*calls; });
    Store(*watcher, 1);
    if (round % 2 == 0) std::this_thread::yield();
    watcher.reset();
    EXPECT_LE(*calls, 1);
  }
  stop = true;
  poller.join();
}

// Its destructor may take a lock that somebody holds who waits for the set's.
TEST(Watcher, CallbacksGoWithoutTheLock) {
  PollerSet set;
  std::vector<std::unique_ptr<Watcher>> added;
  int gone = 0;
  std::shared_ptr<void> owned(nullptr, [&](void*) {
    added.push_back(Watcher::Watch(set, 0, [](uint64_t, uint64_t) {}));
    ++gone;
  });
  std::unique_ptr<Watcher> watcher = Watcher::Watch(set, 0, [owned](uint64_t, uint64_t) {});
  owned.reset();
  set.Poll();
  watcher.reset();
  EXPECT_EQ(gone, 0) << "the poller still has it";
  set.Poll();
  EXPECT_EQ(gone, 1);
}

}  // namespace
}  // namespace jax_fabric
