#include "csrc/base/serial_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace jax_fabric {
namespace {

struct Counter {
  int count = 0;  // plain: tasks run one at a time
  std::thread::id thread;
  SerialExecutor* executor = nullptr;
  int resubmits = 0;
  Task task{[](void* context) {
              auto* self = static_cast<Counter*>(context);
              ++self->count;
              self->thread = std::this_thread::get_id();
              if (self->count <= self->resubmits) self->executor->Submit(&self->task);
            },
            this};
};

TEST(SerialExecutor, RunsInOrderOnItsOwnThread) {
  auto executor = SerialExecutor::Start("test").value();
  struct Step {
    std::vector<int>* order;
    int index;
    Task task;
  };
  std::vector<int> order;
  std::vector<Step> steps(1000);
  for (int i = 0; i < 1000; ++i) {
    steps[i] = {&order, i, {}};
    steps[i].task.context = &steps[i];
    steps[i].task.run = [](void* context) {
      auto* step = static_cast<Step*>(context);
      step->order->push_back(step->index);
    };
    executor->Submit(&steps[i].task);
  }
  ASSERT_TRUE(executor->Stop(5'000'000).has_value());
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  EXPECT_TRUE(executor->Stop(1).has_value());
}

TEST(SerialExecutor, WakesFromSleepAndTasksResubmitThemselves) {
  auto executor = SerialExecutor::Start("test", /*spin_us=*/0).value();
  Counter counter;
  counter.executor = executor.get();
  counter.resubmits = 100;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it sleeps now
  executor->Submit(&counter.task);
  ASSERT_TRUE(executor->Stop(5'000'000).has_value());
  EXPECT_EQ(counter.count, 101);
}

TEST(SerialExecutor, LateTasksRunOnTheSubmitter) {
  auto executor = SerialExecutor::Start("test").value();
  ASSERT_TRUE(executor->Stop(5'000'000).has_value());
  Counter counter;
  counter.executor = executor.get();
  counter.resubmits = 3;
  executor->Submit(&counter.task);
  EXPECT_EQ(counter.count, 4);
  EXPECT_EQ(counter.thread, std::this_thread::get_id());
}

TEST(SerialExecutor, StopIsBounded) {
  auto executor = SerialExecutor::Start("test").value();
  std::atomic<bool> release{false};
  Task task{[](void* context) {
              while (!static_cast<std::atomic<bool>*>(context)->load()) std::this_thread::yield();
            },
            &release};
  executor->Submit(&task);
  EXPECT_EQ(executor->Stop(20'000).error().code, ErrorCode::kDeadlineExceeded);
  release = true;
  EXPECT_TRUE(executor->Stop(5'000'000).has_value());
}

TEST(SerialExecutor, ManySubmittersWhileItStops) {
  for (int round = 0; round < 20; ++round) {
    auto executor = SerialExecutor::Start("test", round % 2).value();
    std::vector<Counter> counters(4 * 200);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          Counter& counter = counters[t * 200 + i];
          counter.task.context = &counter;
          executor->Submit(&counter.task);
        }
      });
    }
    ASSERT_TRUE(executor->Stop(5'000'000).has_value());
    for (std::thread& thread : threads) thread.join();
    for (const Counter& counter : counters) ASSERT_EQ(counter.count, 1);
  }
}

}  // namespace
}  // namespace jax_fabric
