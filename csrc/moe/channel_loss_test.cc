// A rank is lost, or gives up, at any point of a sequence of calls: all others hear of it, and who it was, long before
// their calls' deadlines, whatever each of them had heard of the loss, and of the calls, by then.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/moe/channel.h"
#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/pattern_exchange.h"

namespace jax_fabric::moe {
namespace {

using testing::FabricOptions;
using testing::Mapping;
using testing::MoeFabric;
using testing::PatternCall;
using testing::PatternExchange;

constexpr int64_t kTimeoutUs = 20'000'000;
// A lost rank's message may be here and its immediate not: that is looked at after a tenth of the deadline.
constexpr int64_t kPromptlyUs = 5'000'000;
constexpr int kSeeds = 400;

// Ranks that make the same calls one after the other, each in its own time.
class UnluckyRank {
 public:
  UnluckyRank(uint64_t seed, Mapping mapping) {
    random_.seed(seed);
    FabricOptions options{.ranks = 3 + static_cast<int32_t>(Below(3)), .seed = seed, .mapping = mapping};
    options.jitter_us = 1 + Below(30);
    options.inline_executors = Below(2) == 0;
    MoeConfig config = testing::SmallConfig(options.ranks, 1);
    config.timeout_us = kTimeoutUs;
    fabric_ = std::make_unique<MoeFabric>(options, config);
    fabric_->Connect();
    latest_.resize(options.ranks);
    called_.resize(options.ranks);
    for (int32_t rank = 0; rank < options.ranks; ++rank) fabric_->nic(rank)->faults().lease_ns = 1 + Below(100'000);
  }
  ~UnluckyRank() { fabric_.reset(); }  // refers to the operations

  // Those that all ranks make end well, so there is no end to these.
  void CallNext() {
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) {
      if (rank == lost_ || Failed(rank) || (latest_[rank] != nullptr && !latest_[rank]->finished())) continue;
      if (Below(4) == 0) continue;
      PatternCall call;
      call.pattern = ++called_[rank];
      call.site = {call.pattern, 5};
      call.rounds = 1 + static_cast<int32_t>(call.pattern % 3);
      call.rounds_known = call.pattern % 2 == 0;
      const auto& layout = fabric_->context(rank).config().layout;
      latest_[rank] = operations_.emplace_back(std::make_unique<PatternExchange>(layout, call)).get();
      fabric_->channel(rank, 0).Submit(latest_[rank]);
    }
  }
  void Work(int steps) {
    for (int step = 0; step < steps; ++step) {
      CallNext();
      fabric_->StepAny();
    }
  }
  void Lose(int32_t rank) {
    lost_ = rank;
    fabric_->Kill(rank);
  }
  // One of the next writes that it posts fails, and its peer lives.
  void FailAWriteOf(int32_t rank) { fabric_->nic(rank)->faults().fail_post = static_cast<int>(Below(8)); }
  // Promptly, and say `words`; returns what is wrong, or "". `culprit` ends otherwise.
  std::string AllOthersFail(int32_t culprit, const std::string& words) {
    const Deadline early = fabric_->In(kPromptlyUs);
    while (!AllFailed() && !fabric_->Passed(early)) {
      Work(200);
      fabric_->SkipIdleTime(10'000);
    }
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) {
      if (rank == culprit) continue;
      if (!Failed(rank)) return fmt::format("rank {} still waits in call {}", rank, called_[rank]);
      const std::string& message = latest_[rank]->error().message;
      if (message.find(words) == std::string::npos) return message;
    }
    for (const auto& each : operations_) {
      if (!each->damage().empty()) return each->damage();
    }
    return "";
  }
  const Error& ErrorOf(int32_t rank) const { return latest_[rank]->error(); }
  bool AllOthersHave(int32_t culprit, ErrorCode code) const {
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) {
      if (rank != culprit && ErrorOf(rank).code != code) return false;
    }
    return true;
  }

  uint64_t Below(uint64_t limit) { return random_() % limit; }
  int32_t AnyRank() { return static_cast<int32_t>(Below(fabric_->size())); }

 private:
  bool AllFailed() const {
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) {
      if (rank != lost_ && !Failed(rank)) return false;
    }
    return true;
  }
  bool Failed(int32_t rank) const {
    return latest_[rank] != nullptr && latest_[rank]->finished() && !latest_[rank]->ok();
  }

  std::mt19937_64 random_;
  int32_t lost_ = -1;
  std::unique_ptr<MoeFabric> fabric_;
  std::vector<std::unique_ptr<PatternExchange>> operations_;
  std::vector<PatternExchange*> latest_;  // of each rank
  std::vector<uint64_t> called_;          // by each rank
};

class ChannelLoss : public ::testing::TestWithParam<Mapping> {};
INSTANTIATE_TEST_SUITE_P(Paths, ChannelLoss, ::testing::Values(Mapping::kNone, Mapping::kSome, Mapping::kAll));

TEST_P(ChannelLoss, SurvivorsHearOfItPromptly) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    UnluckyRank ranks(seed, GetParam());
    ranks.Work(50 + static_cast<int>(ranks.Below(2'000)));
    const int32_t lost = ranks.AnyRank();
    ranks.Lose(lost);
    const std::string words = fmt::format("rank {}, which is lost", lost);
    ASSERT_EQ(ranks.AllOthersFail(lost, words), "") << "seed " << seed;
    ASSERT_TRUE(ranks.AllOthersHave(lost, ErrorCode::kUnavailable)) << "seed " << seed;
  }
}

TEST_P(ChannelLoss, OthersHearWhyARankHasGivenUp) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    UnluckyRank ranks(seed, GetParam());
    ranks.Work(50 + static_cast<int>(ranks.Below(2'000)));
    const int32_t culprit = ranks.AnyRank();
    ranks.FailAWriteOf(culprit);
    const std::string words = fmt::format("rank {}, which has given up: moe ", culprit);
    ASSERT_EQ(ranks.AllOthersFail(culprit, words), "") << "seed " << seed;
    const Error& cause = ranks.ErrorOf(culprit);
    ASSERT_NE(cause.message.find(fmt::format("rank {} cannot send", culprit)), std::string::npos) << cause.message;
    ASSERT_TRUE(ranks.AllOthersHave(culprit, cause.code)) << "seed " << seed;
  }
}

// A rank cannot use what comes, which the others cannot know. Its notices may overtake its messages: the others' call
// ends well all the same, and their next one says why not.
TEST_P(ChannelLoss, WhatARankHasSentBeforeItGivesUpCounts) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    FabricOptions options{.ranks = 3 + static_cast<int32_t>(random() % 3), .seed = seed, .mapping = GetParam()};
    options.jitter_us = 100;
    options.loss_probability = 0.1;
    MoeConfig config = testing::SmallConfig(options.ranks, 1);
    config.timeout_us = kTimeoutUs;
    std::vector<std::unique_ptr<PatternExchange>> calls;  // two of each rank
    MoeFabric fabric(options, config);
    fabric.Connect();
    const auto culprit = static_cast<int32_t>(random() % options.ranks);
    for (int32_t rank = 0; rank < options.ranks; ++rank) {
      for (const uint64_t serial : {1, 2}) {
        PatternCall call;
        call.site = {serial, 5};
        call.pattern = serial;
        call.rows = rank == culprit ? 3 : 2;
        call.check_rows = rank == culprit;
        calls.push_back(std::make_unique<PatternExchange>(fabric.context(rank).config().layout, call));
        fabric.channel(rank, 0).Submit(calls.back().get());
      }
    }
    const Deadline early = fabric.In(kPromptlyUs);
    const auto finished = [](const auto& each) { return each->finished(); };
    while (!std::all_of(calls.begin(), calls.end(), finished) && !fabric.Passed(early)) {
      for (int step = 0; step < 100; ++step) fabric.StepAny();
      fabric.SkipIdleTime(10'000);
    }
    const std::string cause = calls[2 * culprit]->error().message;
    ASSERT_NE(cause.find("not the rows that the dispatch before calls for"), std::string::npos) << cause;
    for (int32_t rank = 0; rank < options.ranks; ++rank) {
      if (rank == culprit) continue;
      ASSERT_TRUE(calls[2 * rank]->ok()) << calls[2 * rank]->error().message;
      ASSERT_EQ(calls[2 * rank]->damage(), "");
      const std::string& heard = calls[2 * rank + 1]->error().message;
      const std::string words = fmt::format("rank {} waits for rank {}, which has given up: {}", rank, culprit, cause);
      ASSERT_NE(heard.find(words), std::string::npos) << heard;
    }
  }
}

}  // namespace
}  // namespace jax_fabric::moe
