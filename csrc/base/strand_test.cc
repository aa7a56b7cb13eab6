#include "csrc/base/strand.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/serial_executor.h"

namespace jax_fabric {
namespace {

struct Step {
  Strand* strand = nullptr;
  std::vector<int>* log = nullptr;
  int value = 0;
  Step* then = nullptr;
  Task task;

  Step() {
    task.context = this;
    task.run = [](void* context) {
      auto* self = static_cast<Step*>(context);
      self->log->push_back(self->value);
      if (self->then != nullptr) self->strand->PostOrRun(&self->then->task);
      self->log->push_back(-self->value);
    };
  }
};

TEST(Strand, RunsInlineWhenIdleAndNeverNested) {
  InlineExecutor executor;
  Strand strand(&executor);
  std::vector<int> log;
  Step first, second;
  first.strand = second.strand = &strand;
  first.log = second.log = &log;
  first.value = 1;
  second.value = 2;
  first.then = &second;
  strand.PostOrRun(&first.task);
  EXPECT_EQ(log, (std::vector<int>{1, -1, 2, -2}));
}

// Many threads, both ways of posting; the counter has no synchronisation of its own.
TEST(Strand, SerialisesThreads) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 5000;
  auto executor = SerialExecutor::Start("strand_test");
  ASSERT_TRUE(executor.has_value());
  Strand strand(executor->get());
  struct Increment {
    Task task;
    int64_t* counter;
  };
  int64_t counter = 0;
  std::vector<std::vector<Increment>> tasks(kThreads, std::vector<Increment>(kTasks));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        Increment& each = tasks[t][i];
        each.counter = &counter;
        each.task.context = &each;
        each.task.run = [](void* context) { ++*static_cast<Increment*>(context)->counter; };
        if ((i + t) % 3 == 0) {
          strand.Post(&each.task);
        } else {
          strand.PostOrRun(&each.task);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // Tasks may still be on the executor; a last one tells when the strand has come to the end.
  std::atomic<int64_t> seen{-1};
  struct Last {
    Task task;
    int64_t* counter;
    std::atomic<int64_t>* seen;
  } last{{}, &counter, &seen};
  const Deadline deadline = Deadline::After(SteadyClock::Get(), 20'000'000);
  while (seen.load() != int64_t{kThreads} * kTasks) {
    ASSERT_FALSE(deadline.Passed(SteadyClock::Get())) << seen.load();
    last.task.context = &last;
    last.task.run = [](void* context) {
      auto* self = static_cast<Last*>(context);
      self->seen->store(*self->counter);
    };
    seen.store(-1);
    strand.PostOrRun(&last.task);
    while (seen.load() < 0) std::this_thread::yield();
  }
  EXPECT_TRUE((*executor)->Stop(1'000'000).has_value());
}

}  // namespace
}  // namespace jax_fabric
