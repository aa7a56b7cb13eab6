// The exchange rule under any order of calls, deliveries and steps. A seed is a test parameter: run one again with
// --gtest_filter='*Orders*/17'.
#include "csrc/moe/channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/pattern_exchange.h"

namespace jax_fabric::moe {
namespace {

using kernels::ExchangeKind;
using testing::FabricOptions;
using testing::Mapping;
using testing::MoeFabric;
using testing::PatternCall;
using testing::PatternExchange;
using testing::SmallConfig;
using testing::Transport;

FabricOptions RandomOptions(uint64_t seed, Transport transport) {
  std::mt19937_64 random(seed * 7919 + 1);
  constexpr int32_t kRanks[] = {1, 2, 3, 5, 8};
  FabricOptions options;
  options.ranks = kRanks[random() % std::size(kRanks)];
  options.seed = seed;
  options.transport = transport;
  options.mapping = static_cast<Mapping>(random() % 3);
  options.again_probability = random() % 2 == 0 ? 0 : 0.3;
  options.jitter_us = random() % 2 == 0 ? 0 : 8;
  options.loss_probability = random() % 3 == 0 ? 0.1 : 0;
  options.early_completions = random() % 3 == 0;
  options.inline_executors = random() % 2 == 0;
  return options;
}

// A program: calls on channels, some of which need the result of an earlier one.
struct Call {
  PatternCall pattern;
  int32_t channel = 0;
  int32_t after = -1;  // index of the call whose result it needs
};

std::vector<Call> RandomProgram(std::mt19937_64& random, int32_t channels, int32_t calls) {
  std::vector<Call> program;
  // 0: independent calls; 1: mostly; 2: one after the other.
  const int style = random() % 3;
  constexpr ExchangeKind kKinds[] = {ExchangeKind::kCombine, ExchangeKind::kRedispatch, ExchangeKind::kDispatchBack};
  for (int32_t i = 0; i < calls; ++i) {
    Call call;
    call.pattern.site = {static_cast<uint64_t>(i + 1), random() % 4};
    call.pattern.run = 1 + i / 16;
    call.pattern.kind = kKinds[random() % 3];
    call.pattern.signature = random();
    call.pattern.pattern = random();
    call.pattern.rows = random() % 4 == 0 ? 0 : -1;
    call.pattern.check_rows = random() % 2 == 0;
    if (random() % 3 == 0) call.pattern.rounds = 1 + random() % 5;
    call.pattern.rounds_known = random() % 2 == 0;
    call.channel = static_cast<int32_t>(random() % channels);
    const auto size = static_cast<int32_t>(program.size());
    if (size > 0 && (style == 2 || (style == 1 && random() % 3 == 0))) {
      call.after = static_cast<int32_t>(random() % size);
      if (random() % 2 == 0) {
        // The same site again, as in a loop.
        call.channel = program[call.after].channel;
        call.pattern.site = program[call.after].pattern.site;
        const auto same = [&](const Call& other) {
          return &other != &program[call.after] && other.pattern.site.serial == call.pattern.site.serial;
        };
        if (std::any_of(program.begin() + call.after + 1, program.end(), same)) continue;
        call.pattern.run = program[call.after].pattern.run;
      }
    }
    program.push_back(call);
  }
  return program;
}

// Runs the program on all ranks, each in an order of its own.
class Execution {
 public:
  Execution(MoeFabric& fabric, const std::vector<Call>& program) : fabric_(fabric), program_(program) {
    for (int32_t rank = 0; rank < fabric.size(); ++rank) {
      operations_.emplace_back(program.size());
    }
  }

  ~Execution() {
    if (!Done()) fabric_.Close();  // the operations go away
  }

  // A random thing happens: a call starts, a worker steps, an executor runs.
  void Something(double submit_probability) {
    if (!fabric_.Chance(submit_probability)) {
      fabric_.StepAny();
      return;
    }
    const int32_t rank = static_cast<int32_t>(fabric_.random()() % fabric_.size());
    std::vector<size_t> ready;
    for (size_t i = 0; i < program_.size(); ++i) {
      if (Ready(rank, i)) ready.push_back(i);
    }
    if (!ready.empty()) Submit(rank, ready[fabric_.random()() % ready.size()]);
  }
  void Submit(int32_t rank, size_t i) {
    const Call& call = program_[i];
    operations_[rank][i] = std::make_unique<PatternExchange>(fabric_.context(rank).config().layout, call.pattern);
    fabric_.channel(rank, call.channel).Submit(operations_[rank][i].get());
  }

  const PatternExchange& operation(int32_t rank, size_t i) const { return *operations_[rank][i]; }

  bool Done() const {
    for (const auto& operations : operations_) {
      for (const auto& operation : operations) {
        if (!operation || !operation->finished()) return false;
      }
    }
    return true;
  }

  // Every call ended once and well, and has one number on all ranks; a channel's numbers have no gap.
  void Check(int32_t channels) const {
    std::vector<std::vector<int64_t>> numbers(channels);
    for (size_t i = 0; i < program_.size(); ++i) {
      for (int32_t rank = 0; rank < fabric_.size(); ++rank) {
        const PatternExchange& operation = *operations_[rank][i];
        ASSERT_TRUE(operation.ok()) << operation.error().message;
        ASSERT_EQ(operation.damage(), "");
        ASSERT_EQ(operation.sequence(), operations_[0][i]->sequence());
      }
      numbers[program_[i].channel].push_back(operations_[0][i]->sequence());
    }
    for (auto& each : numbers) {
      std::sort(each.begin(), each.end());
      for (size_t i = 0; i < each.size(); ++i) ASSERT_EQ(each[i], static_cast<int64_t>(i + 1));
    }
  }

 private:
  bool Ready(int32_t rank, size_t i) const {
    if (operations_[rank][i]) return false;
    const int32_t after = program_[i].after;
    return after < 0 || (operations_[rank][after] && operations_[rank][after]->finished());
  }

  MoeFabric& fabric_;
  const std::vector<Call>& program_;
  std::vector<std::vector<std::unique_ptr<PatternExchange>>> operations_;  // [rank][call]
};

void RunSeed(uint64_t seed, Transport transport) {
  const FabricOptions options = RandomOptions(seed, transport);
  SCOPED_TRACE(options.Describe());
  constexpr int32_t kChannels = 3;
  MoeConfig config = SmallConfig(options.ranks, kChannels);
  config.timeout_us = 1'000'000'000;
  MoeFabric fabric(options, config);
  fabric.Connect();
  const std::vector<Call> program =
      RandomProgram(fabric.random(), 1 + fabric.random()() % kChannels, 1 + fabric.random()() % 48);
  Execution run(fabric, program);
  const double submit_probability = fabric.Chance(0.3) ? 0.5 : 0.02;
  for (int step = 0; step < 2'000'000 && !run.Done(); ++step) {
    run.Something(submit_probability);
    ASSERT_EQ(fabric.context(0).error(), nullptr) << fabric.context(0).error()->message;
  }
  ASSERT_TRUE(run.Done()) << "stuck";
  run.Check(kChannels);
}

class SimulatedOrders : public ::testing::TestWithParam<uint64_t> {};
TEST_P(SimulatedOrders, EveryCallGetsItsOwnMessages) { RunSeed(GetParam(), Transport::kSimulated); }
INSTANTIATE_TEST_SUITE_P(Seeds, SimulatedOrders, ::testing::Range<uint64_t>(0, 300));

class LocalOrders : public ::testing::TestWithParam<uint64_t> {};
TEST_P(LocalOrders, EveryCallGetsItsOwnMessages) { RunSeed(GetParam(), Transport::kLocal); }
INSTANTIATE_TEST_SUITE_P(Seeds, LocalOrders, ::testing::Range<uint64_t>(0, 100));

// On every path.
class PathTest : public ::testing::TestWithParam<std::tuple<Transport, Mapping>> {
 protected:
  FabricOptions Options(int32_t ranks) const {
    FabricOptions options;
    options.ranks = ranks;
    options.transport = std::get<0>(GetParam());
    options.mapping = std::get<1>(GetParam());
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, PathTest,
                         ::testing::Combine(::testing::Values(Transport::kSimulated, Transport::kLocal),
                                            ::testing::Values(Mapping::kNone, Mapping::kSome, Mapping::kAll)));

// All of them before anything moves, in opposite orders.
TEST_P(PathTest, MoreIndependentCallsThanTheRingHolds) {
  constexpr int32_t kCalls = 5 * AnnouncementRing::kEntries;
  MoeFabric fabric(Options(3), SmallConfig(3, 1));
  fabric.Connect();
  std::vector<Call> program(kCalls);
  for (int32_t i = 0; i < kCalls; ++i) {
    program[i].pattern.site = {static_cast<uint64_t>(i + 1), 5};
    program[i].pattern.pattern = i;
  }
  Execution run(fabric, program);
  for (int32_t rank = 0; rank < 3; ++rank) {
    std::vector<size_t> order(kCalls);
    for (size_t i = 0; i < kCalls; ++i) order[i] = rank == 1 ? kCalls - 1 - i : i;
    if (rank == 2) std::shuffle(order.begin(), order.end(), fabric.random());
    for (const size_t i : order) run.Submit(rank, i);
  }
  EXPECT_TRUE(fabric.StepUntil([&] { return run.Done(); }));
  run.Check(1);
}

// Whoever has no rows takes part like everybody else.
TEST_P(PathTest, NoRowsAndManyInTurn) {
  MoeFabric fabric(Options(4), SmallConfig(4, 1));
  fabric.Connect();
  std::vector<Call> program(1000);
  for (size_t i = 0; i < program.size(); ++i) {
    program[i].pattern.site = {1, 5};
    program[i].pattern.run = i;
    program[i].pattern.pattern = i;
    program[i].pattern.rows = i % 2 == 0 ? 0 : 4;
    program[i].pattern.rounds = 1 + i % 3;
  }
  Execution run(fabric, program);
  for (size_t i = 0; i < program.size(); ++i) {
    for (int32_t rank = 0; rank < 4; ++rank) run.Submit((i + rank) % 4, i);
    if (i % 3 == 0) fabric.StepAll();
  }
  EXPECT_TRUE(fabric.StepUntil([&] { return run.Done(); }, 100'000));
  run.Check(1);
}

// A rank without a peer exchanges with itself, at once.
TEST(Channel, OneRank) {
  MoeFabric fabric({.ranks = 1}, SmallConfig(1, 1));
  fabric.Connect();
  std::vector<Call> program(20);
  for (size_t i = 0; i < program.size(); ++i) program[i].pattern.site = {i, 5};
  Execution run(fabric, program);
  for (size_t i = 0; i < program.size(); ++i) run.Submit(0, i);
  EXPECT_TRUE(run.Done());
  run.Check(1);
}

// Two calls of many rounds on two channels go on side by side: neither waits for the other one's last round.
TEST_P(PathTest, RoundsOfTwoChannelsOverlap) {
  MoeFabric fabric(Options(3), SmallConfig(3, 2));
  fabric.Connect();
  std::vector<Call> program(2);
  for (int32_t i = 0; i < 2; ++i) {
    program[i] = {.pattern = {.site = {static_cast<uint64_t>(i + 1), 5}, .pattern = 7u + i, .rounds = 40},
                  .channel = i};
  }
  Execution run(fabric, program);
  for (int32_t rank = 0; rank < 3; ++rank) {
    for (const size_t i : {0, 1}) run.Submit(rank, rank == 1 ? 1 - i : i);
  }
  const auto packs = [&](size_t call) { return run.operation(0, call).packs(); };
  EXPECT_TRUE(fabric.StepUntil([&] { return packs(0) > 10; }));
  EXPECT_LT(packs(0), 40);
  EXPECT_GT(packs(1), 5);
  EXPECT_LT(packs(1), 40);
  EXPECT_TRUE(fabric.StepUntil([&] { return run.Done(); }));
  run.Check(2);
}

TEST(Channel, ManyRanks) {
  MoeFabric fabric({.ranks = 33, .mapping = Mapping::kSome, .jitter_us = 3}, SmallConfig(33, 1));
  fabric.Connect();
  std::vector<Call> program(10);
  for (size_t i = 0; i < program.size(); ++i) program[i].pattern.site = {i, 5};
  Execution run(fabric, program);
  for (int32_t rank = 0; rank < 33; ++rank) {
    for (size_t i = 0; i < program.size(); ++i) run.Submit(rank, (i + rank) % program.size());
  }
  EXPECT_TRUE(fabric.StepUntil([&] { return run.Done(); }));
  run.Check(1);
}

// A channel that waits holds up no other one.
TEST(Channel, ChannelsAreIndependent) {
  MoeFabric fabric({.ranks = 2}, SmallConfig(2, 2));
  fabric.Connect();
  std::vector<Call> program(2);
  for (int32_t i = 0; i < 2; ++i) program[i] = {.pattern = {.site = {static_cast<uint64_t>(i), 5}}, .channel = i};
  Execution run(fabric, program);
  run.Submit(0, 0);
  run.Submit(0, 1);
  run.Submit(1, 1);
  fabric.StepAll(50);
  EXPECT_FALSE(run.Done());
  run.Submit(1, 0);
  EXPECT_TRUE(fabric.StepUntil([&] { return run.Done(); }));
  run.Check(2);
}

}  // namespace
}  // namespace jax_fabric::moe
