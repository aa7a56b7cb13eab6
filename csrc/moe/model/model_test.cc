#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/moe/model/model_options.h"
#include "csrc/moe/model/workload.h"

namespace jax_fabric::moe::model {
namespace {

ModelOptions Options(Protocol protocol, int32_t ranks) {
  ModelOptions options;
  options.protocol = protocol;
  options.ranks = ranks;
  options.nic.latency_ns = 5'000;
  options.nic.bytes_per_ns = 40;
  options.nic.post_ns = 100;
  options.kernels = {.launch_ns = 15'000,
                     .dispatch_send_ns = 18'000,
                     .dispatch_receive_ns = 25'000,
                     .combine_send_ns = 13'000,
                     .combine_receive_ns = 15'000,
                     .host_ns = 1'000};
  return options;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TEST(Workload, CountsAddUp) {
  ModelOptions options = Options(Protocol::kRounds, 6);
  options.experts = 16;  // the last rank has one
  options.tokens = 50;
  options.private_tokens = 4;
  const Workload workload(options, 3);
  EXPECT_GT(workload.rounds(), 2);
  for (int32_t source = 0; source < 6; ++source) {
    int64_t entries = 0;
    double share = 0;
    for (int32_t target = 0; target < 6; ++target) {
      EXPECT_LE(workload.Rows(source, target), workload.Entries(source, target));
      EXPECT_LE(workload.Entries(source, target), 3 * workload.Rows(source, target));
      entries += workload.Entries(source, target);
      int64_t rows = 0;
      for (int32_t round = 0; round < workload.rounds(); ++round) {
        EXPECT_EQ(workload.FirstRow(source, target, round), rows);
        EXPECT_LE(workload.RowsInRound(source, target, round), 4);
        rows += workload.RowsInRound(source, target, round);
      }
      EXPECT_EQ(rows, workload.Rows(source, target));
    }
    for (int32_t round = 0; round < workload.rounds(); ++round) share += workload.ShareOfRound(source, round);
    EXPECT_EQ(entries, 50 * 8);
    EXPECT_NEAR(share, 1, 1e-9);
  }
}

// Two ranks, one message: its time can be said without a model.
TEST(Model, OneMessageTakesWhatItsPartsTake) {
  ModelOptions options = Options(Protocol::kRounds, 2);
  options.node_ranks = 1;
  options.experts = 16;
  options.calls = 1;
  const ModelTimes times = RunModel(options).value();
  const Workload workload(options, options.seed);
  const kernels::SlotLayout layout = options.Config().layout;
  const auto bytes = [&](int32_t from, int32_t to) {
    return static_cast<double>(
        layout.DispatchMessageBytes(workload.Rows(from, to), workload.Entries(from, to), workload.Rows(from, to)));
  };
  ASSERT_EQ(times.dispatch_us.size(), 2u);
  const double parts = 18 + 1 + 0.1 + 5 + 25;
  EXPECT_NEAR(*std::max_element(times.dispatch_us.begin(), times.dispatch_us.end()),
              parts + std::max(bytes(0, 1), bytes(1, 0)) / 40e3, 1.5);
}

TEST(Model, TheSameSeedIsTheSameRun) {
  for (const Protocol protocol : {Protocol::kChannel, Protocol::kRounds, Protocol::kTwoPhases}) {
    ModelOptions options = Options(protocol, 16);
    const ModelTimes first = RunModel(options).value();
    const ModelTimes second = RunModel(options).value();
    EXPECT_EQ(first.dispatch_us, second.dispatch_us);
    EXPECT_EQ(first.combine_us, second.combine_us);
    ASSERT_EQ(first.dispatch_us.size(), 16u * 3);
    options.seed = 100;
    EXPECT_NE(RunModel(options).value().dispatch_us, first.dispatch_us);
  }
}

// The program posts what the channels post. These also announce each call: rank 0's word travels before others start.
TEST(Model, ProgramOfRoundsIsWhatChannelsDo) {
  for (const int32_t private_tokens : {INT32_MAX, 16}) {
    ModelOptions options = Options(Protocol::kChannel, 24);
    options.private_tokens = private_tokens;
    const ModelTimes channel = RunModel(options).value();
    options.protocol = Protocol::kRounds;
    const ModelTimes program = RunModel(options).value();
    EXPECT_EQ(channel.writes, program.writes);
    EXPECT_NEAR(static_cast<double>(channel.wire_bytes) / static_cast<double>(program.wire_bytes), 1, 1e-9);
    const double announcement = 5 + 24 * 0.1;
    EXPECT_NEAR(Median(channel.dispatch_us), Median(program.dispatch_us) + announcement, 8) << private_tokens;
    // A combine's announcement may be there before the rank has ended its dispatch.
    EXPECT_GT(Median(channel.combine_us), Median(program.combine_us) - 5) << private_tokens;
    EXPECT_LT(Median(channel.combine_us), Median(program.combine_us) + announcement + 5) << private_tokens;
  }
}

TEST(Model, FewRanksStandForMany) {
  for (const Protocol protocol : {Protocol::kRounds, Protocol::kTwoPhases}) {
    ModelOptions options = Options(protocol, 64);
    options.private_tokens = 32;
    const ModelTimes all = RunModel(options).value();
    options.representatives = 16;
    const ModelTimes few = RunModel(options).value();
    EXPECT_NEAR(Median(few.dispatch_us) / Median(all.dispatch_us), 1, 0.04);
    EXPECT_NEAR(Median(few.combine_us) / Median(all.combine_us), 1, 0.04);
  }
}

TEST(Model, AFasterWireTakesLessTime) {
  for (const Protocol protocol : {Protocol::kChannel, Protocol::kTwoPhases}) {
    ModelOptions options = Options(protocol, 16);
    const double slow = Median(RunModel(options).value().combine_us);
    options.nic.bytes_per_ns *= 2;
    const double fast = Median(RunModel(options).value().combine_us);
    EXPECT_LT(fast, slow - 40);
    options.nic.latency_ns += 10'000;
    // One hop, or two: after an announcement, or after a barrier.
    const double far = Median(RunModel(options).value().combine_us);
    EXPECT_GT(far, fast + 9);
    EXPECT_LT(far, fast + 23);
  }
}

// What private tokens are for: rows go while the counts are still on their way.
TEST(Model, PrivateTokensHideTheExchangeOfCounts) {
  ModelOptions options = Options(Protocol::kTwoPhases, 32);
  options.nic.latency_ns = 30'000;
  std::vector<double> times;
  for (const int32_t private_tokens : {1, 16, 128}) {
    options.private_tokens = private_tokens;
    times.push_back(Median(RunModel(options).value().dispatch_us));
  }
  EXPECT_GT(times[0], times[1] + 5);
  EXPECT_GT(times[0], times[2] + 5);
}

TEST(Model, OptionsThatCannotBeAreNamed) {
  const auto error = [](auto change) {
    ModelOptions options = Options(Protocol::kChannel, 16);
    change(options);
    const auto result = RunModel(options);
    return result.has_value() ? std::string() : result.error().message;
  };
  EXPECT_NE(error([](ModelOptions& o) { o.ranks = 1; }).find("ranks=1"), std::string::npos);
  EXPECT_NE(error([](ModelOptions& o) { o.top_k = 300; }).find("top_k=300"), std::string::npos);
  EXPECT_NE(error([](ModelOptions& o) { o.representatives = 4; }).find("representatives=4"), std::string::npos);
  EXPECT_NE(error([](ModelOptions& o) { o.nic.bytes_per_ns = 0; }).find("bytes_per_ns"), std::string::npos);
}

}  // namespace
}  // namespace jax_fabric::moe::model
