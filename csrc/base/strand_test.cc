#include "csrc/base/strand.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
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

// As a context closes: a thread brings the last task while another one waits for it on the strand, and destroys that.
TEST(Strand, MayBeDestroyedWhenIdle) {
  auto executor = SerialExecutor::Start("strand_test").value();
  for (int round = 0; round < 1'000; ++round) {
    auto strand = std::make_unique<Strand>(executor.get());
    struct Last {
      Task task;
      std::atomic<bool> has_run{false};
    } last;
    last.task.context = &last;
    last.task.run = [](void* context) { static_cast<Last*>(context)->has_run.store(true, std::memory_order_relaxed); };
    std::thread poster([&, strand = strand.get()] { strand->Post(&last.task); });
    struct Sweep {
      Task task;
      const Last* last;
      const std::thread::id closer = std::this_thread::get_id();
      std::atomic<int> result{-1};
    };
    for (bool closed = false; !closed;) {
      Sweep sweep;
      sweep.last = &last;
      sweep.task.context = &sweep;
      sweep.task.run = [](void* context) {
        auto* self = static_cast<Sweep*>(context);
        const bool quiet =
            self->last->has_run.load(std::memory_order_relaxed) && std::this_thread::get_id() == self->closer;
        self->result.store(quiet ? 1 : 0, std::memory_order_release);
      };
      strand->PostOrRun(&sweep.task);
      while (sweep.result.load(std::memory_order_acquire) < 0) std::this_thread::yield();
      closed = sweep.result.load(std::memory_order_relaxed) == 1 && strand->IsIdle();
      if (!closed) std::this_thread::yield();  // there may be fewer cores than threads
    }
    strand.reset();
    poster.join();
  }
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
