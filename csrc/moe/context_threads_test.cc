// Contexts as a process has them: an engine with threads over the local domain, kernels on executors, one submitting
// thread a rank. For ThreadSanitizer and AddressSanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/serial_executor.h"
#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/moe/context.h"
#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/partly_mapped_domain.h"
#include "csrc/moe/testing/pattern_exchange.h"
#include "csrc/moe/testing/started_pattern.h"

namespace jax_fabric::moe {
namespace {

using testing::PartlyMappedDomain;
using testing::PatternCall;
using testing::PatternExchange;
using testing::SmallConfig;
using testing::StartedPattern;

Deadline In(int64_t milliseconds) { return Deadline::After(SteadyClock::Get(), milliseconds * 1000); }

class Process {
 public:
  Process(int32_t ranks, bool mapped, const MoeConfig& config) {
    EngineOptions options;
    // Few cores and many threads: nobody may spin for long.
    options.idle = {.mode = IdleMode::kAdaptive, .spin_us = 5, .yield_us = 50};
    engine_ = TransferEngine::Create(options).value();
    for (int32_t rank = 0; rank < ranks; ++rank) {
      GroupOptions group_options;
      group_options.name = "rank" + std::to_string(rank);
      group_options.domains.push_back(
          std::make_unique<PartlyMappedDomain>(CreateLocalDomain({}).value(), [mapped] { return mapped; }));
      DomainGroup* group = engine_->AddGroup(std::move(group_options)).value();
      executors_.push_back(SerialExecutor::Start("kernels", 5).value());
      MoeConfig own = config;
      own.layout.shape.rank = rank;
      own.timeout_us = 60'000'000;  // machines are slow at times
      contexts_.push_back(Context::Create(own, group, executors_.back().get()).value());
    }
    std::vector<Bytes> introductions;
    for (const auto& context : contexts_) introductions.push_back(context->Introduction().value());
    for (const auto& context : contexts_) {
      const Status status = context->Connect(introductions, In(20'000));
      EXPECT_TRUE(status.has_value()) << status.error().message;
    }
  }
  ~Process() {
    CloseContexts();
    EXPECT_TRUE(engine_->Close(In(20'000)).has_value());
    CloseContexts();
    contexts_.clear();
  }

  // All are closed before the first is destroyed: peers of one process store into each other's memory.
  void CloseContexts() {
    for (const auto& context : contexts_) EXPECT_TRUE(context->Close(In(20'000)));
  }
  void DestroyContexts() { contexts_.clear(); }

  int32_t ranks() const { return static_cast<int32_t>(contexts_.size()); }
  Context& context(int32_t rank) { return *contexts_[rank]; }
  TransferEngine& engine() { return *engine_; }

 private:
  std::vector<std::unique_ptr<SerialExecutor>> executors_;
  std::unique_ptr<TransferEngine> engine_;
  std::vector<std::unique_ptr<Context>> contexts_;
};

// One thread for each rank.
void OnEachRank(int32_t ranks, const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

bool WaitFor(const PatternExchange& operation) {
  const Deadline deadline = In(60'000);
  while (!operation.finished() && !deadline.Passed(SteadyClock::Get())) std::this_thread::yield();
  return operation.finished();
}

PatternCall CallOf(int64_t i) {
  PatternCall call;
  call.site = {static_cast<uint64_t>(i % 16), 3};
  call.run = i / 16;
  call.pattern = i;
  call.kind = i % 3 == 0 ? kernels::ExchangeKind::kDispatchBack : kernels::ExchangeKind::kRedispatch;
  return call;
}

class ContextThreads : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Mapped, ContextThreads, ::testing::Bool());

// Batches of independent calls, each rank in an order of its own.
TEST_P(ContextThreads, ManySmallExchanges) {
  constexpr int32_t kRanks = 4, kChannels = 2;
  constexpr int64_t kCalls = 2000, kBatch = 20;
  Process process(kRanks, GetParam(), SmallConfig(kRanks, kChannels));
  std::atomic<int> failures{0};
  std::vector<std::vector<int64_t>> numbers(kRanks);
  OnEachRank(kRanks, [&](int32_t rank) {
    std::mt19937_64 random(rank);
    Context& context = process.context(rank);
    for (int64_t first = 0; first < kCalls; first += kBatch) {
      std::vector<std::unique_ptr<PatternExchange>> batch;
      std::vector<int64_t> order;
      for (int64_t i = 0; i < kBatch; ++i) {
        batch.push_back(std::make_unique<PatternExchange>(context.config().layout, CallOf(first + i)));
        order.push_back(i);
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const int64_t i : order) context.channel(i % kChannels)->Submit(batch[i].get());
      for (const auto& each : batch) {
        if (!WaitFor(*each) || !each->ok() || !each->damage().empty()) {
          if (failures.fetch_add(1) == 0) ADD_FAILURE() << each->error().message << each->damage();
          std::this_thread::sleep_for(std::chrono::seconds(2));  // the others may still use the rest
          for (const auto& other : batch) WaitFor(*other);
          return;
        }
        numbers[rank].push_back(each->sequence());
      }
    }
  });
  EXPECT_EQ(failures.load(), 0);
  for (int32_t rank = 1; rank < kRanks; ++rank) EXPECT_EQ(numbers[rank], numbers[0]);
}

// One thread starts, another one asks for the results as soon as it hears of the start.
TEST_P(ContextThreads, StartedExchanges) {
  constexpr int32_t kRanks = 3;
  constexpr int64_t kCalls = 500;
  Process process(kRanks, GetParam(), SmallConfig(kRanks, 2));
  std::vector<std::vector<std::unique_ptr<StartedPattern>>> patterns(kRanks * 2);
  for (int32_t i = 0; i < kRanks * 2; ++i) {
    for (int64_t call = 0; call < kCalls; ++call) {
      patterns[i].push_back(
          std::make_unique<StartedPattern>(process.context(i / 2).config().layout, CallOf(2 * call + i % 2)));
    }
  }
  OnEachRank(kRanks * 4, [&](int32_t thread) {
    const int32_t rank = thread / 4, channel = thread / 2 % 2;
    Channel& mine = *process.context(rank).channel(channel);
    for (const auto& each : patterns[rank * 2 + channel]) {
      const Deadline deadline = In(60'000);
      const auto wait_for = [&](auto&& happened) {
        while (!happened() && !deadline.Passed(SteadyClock::Get())) std::this_thread::yield();
      };
      if (thread % 2 == 0) {
        each->Start(mine);
        wait_for([&] { return each->ends() == 1; });
      } else {
        wait_for([&] { return each->starts() == 1; });
        each->Done(mine);
      }
    }
  });
  for (const auto& of_channel : patterns) {
    for (const auto& each : of_channel) {
      EXPECT_EQ(each->ends(), 1);
      EXPECT_EQ(each->error().message + each->damage(), "");
    }
  }
}

// Rank 0 cannot use what comes, which the others cannot know: their call ends well, and the next one in a moment, not
// at the deadline.
TEST_P(ContextThreads, OthersHearWhyARankHasGivenUp) {
  constexpr int32_t kRanks = 4;
  for (int round = 0; round < 20; ++round) {
    Process process(kRanks, GetParam(), SmallConfig(kRanks, 1));
    std::vector<std::vector<std::unique_ptr<PatternExchange>>> calls(kRanks);
    const auto start = std::chrono::steady_clock::now();
    OnEachRank(kRanks, [&](int32_t rank) {
      for (int64_t i = 0; i < (rank == 0 ? 1 : 2); ++i) {
        PatternCall call = CallOf(i);
        call.rows = rank == 0 ? 3 : 2;
        call.check_rows = rank == 0;
        calls[rank].push_back(std::make_unique<PatternExchange>(process.context(rank).config().layout, call));
        process.context(rank).channel(0)->Submit(calls[rank].back().get());
        WaitFor(*calls[rank].back());
      }
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50));
    const std::string cause = calls[0][0]->error().message;
    EXPECT_NE(cause.find("not the rows that the dispatch before calls for"), std::string::npos) << cause;
    for (int32_t rank = 1; rank < kRanks; ++rank) {
      EXPECT_EQ(calls[rank][0]->error().message + calls[rank][0]->damage(), "");
      const std::string& heard = calls[rank][1]->error().message;
      EXPECT_NE(heard.find("waits for rank 0, which has given up: " + cause), std::string::npos) << heard;
    }
    process.CloseContexts();
  }
}

// The operations of one rank, kept until the contexts are closed.
struct Submitted {
  std::vector<std::unique_ptr<PatternExchange>> operations;
};

// Two threads close every context while others submit; then all of it goes away at once.
TEST_P(ContextThreads, CloseFromTwoThreadsWhileBusy) {
  for (int round = 0; round < 20; ++round) {
    constexpr int32_t kRanks = 3;
    std::vector<Submitted> submitted(kRanks);
    {
      Process process(kRanks, GetParam(), SmallConfig(kRanks, 2));
      std::atomic<int> running{kRanks};
      std::vector<std::thread> closers;
      for (int i = 0; i < 2; ++i) {
        closers.emplace_back([&, i] {
          std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
          for (int32_t rank = 0; rank < kRanks; ++rank) {
            EXPECT_TRUE(process.context(i == 0 ? rank : kRanks - 1 - rank).Close(In(20'000)));
          }
        });
      }
      OnEachRank(kRanks, [&](int32_t rank) {
        Context& context = process.context(rank);
        for (int64_t i = 0; i < 300; ++i) {
          auto& operations = submitted[rank].operations;
          operations.push_back(std::make_unique<PatternExchange>(context.config().layout, CallOf(i)));
          context.channel(i % 2)->Submit(operations.back().get());
          if (i % 16 == 15) WaitFor(*operations.back());
        }
        running.fetch_sub(1);
      });
      for (std::thread& closer : closers) closer.join();
    }
    for (const Submitted& each : submitted) {
      for (const auto& operation : each.operations) {
        ASSERT_EQ(operation->finishes(), 1);
        ASSERT_EQ(operation->damage(), "");
        if (!operation->ok()) {
          ASSERT_EQ(operation->error().code, ErrorCode::kCancelled) << operation->error().message;
        }
      }
    }
  }
}

// A context is destroyed as soon as Close has returned true: nobody may touch it any more.
TEST_P(ContextThreads, DestroyRightAfterClose) {
  for (int round = 0; round < 100; ++round) {
    std::vector<Submitted> submitted(2);
    Process process(2, GetParam(), SmallConfig(2, 2));
    for (int64_t i = 0; i < 10; ++i) {
      for (int32_t rank = 0; rank < 2; ++rank) {
        Context& context = process.context(rank);
        auto& operations = submitted[rank].operations;
        operations.push_back(std::make_unique<PatternExchange>(context.config().layout, CallOf(i)));
        context.channel(i % 2)->Submit(operations.back().get());
      }
    }
    process.CloseContexts();
    process.DestroyContexts();
    for (const Submitted& each : submitted) {
      for (const auto& operation : each.operations) ASSERT_EQ(operation->finishes(), 1);
    }
  }
}

// The engine goes first, from under busy contexts.
TEST_P(ContextThreads, EngineClosesFirst) {
  for (int round = 0; round < 10; ++round) {
    constexpr int32_t kRanks = 3;
    std::vector<Submitted> submitted(kRanks);
    Process process(kRanks, GetParam(), SmallConfig(kRanks, 2));
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
      EXPECT_TRUE(process.engine().Close(In(20'000)).has_value());
    });
    OnEachRank(kRanks, [&](int32_t rank) {
      Context& context = process.context(rank);
      for (int64_t i = 0; i < 200; ++i) {
        auto& operations = submitted[rank].operations;
        operations.push_back(std::make_unique<PatternExchange>(context.config().layout, CallOf(i)));
        context.channel(i % 2)->Submit(operations.back().get());
        if (i % 8 == 7) {
          EXPECT_TRUE(WaitFor(*operations.back()));
        }
      }
    });
    closer.join();
    for (const Submitted& each : submitted) {
      for (const auto& operation : each.operations) EXPECT_TRUE(WaitFor(*operation));
    }
  }
}

}  // namespace
}  // namespace jax_fabric::moe
