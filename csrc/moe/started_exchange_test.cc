// Exchanges in two halves, on stepped engines: whatever comes between the halves, both of them end, once.
#include "csrc/moe/started_exchange.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/started_pattern.h"

namespace jax_fabric::moe {
namespace {

using kernels::ExchangeKind;
using testing::FabricOptions;
using testing::Mapping;
using testing::MoeFabric;
using testing::PatternCall;
using testing::SmallConfig;
using testing::StartedPattern;
using testing::Transport;

PatternCall CallOf(uint64_t serial) {
  PatternCall call;
  call.site = {serial, 5};
  call.pattern = serial;
  call.kind = serial % 2 == 0 ? ExchangeKind::kCombine : ExchangeKind::kRedispatch;
  call.rounds = 1 + serial % 4;
  call.rounds_known = serial % 3 == 0;
  return call;
}

class StartedExchangeTest : public ::testing::TestWithParam<Mapping> {
 protected:
  void Create(const FabricOptions& options, int32_t channels = 2) {
    fabric_ = std::make_unique<MoeFabric>(options, SmallConfig(options.ranks, channels));
    fabric_->Connect();
  }
  void Create(int32_t ranks) { Create(FabricOptions{.ranks = ranks, .mapping = GetParam()}); }
  void TearDown() override { fabric_.reset(); }

  StartedPattern& Start(int32_t rank, uint64_t serial, int32_t channel = 0) {
    patterns_.push_back(std::make_unique<StartedPattern>(fabric_->context(rank).config().layout, CallOf(serial)));
    patterns_.back()->Start(fabric_->channel(rank, channel));
    return *patterns_.back();
  }
  std::vector<StartedPattern*> StartAll(uint64_t serial, int32_t channel = 0) {
    std::vector<StartedPattern*> all;
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) all.push_back(&Start(rank, serial, channel));
    return all;
  }
  static bool Started(const std::vector<StartedPattern*>& all) {
    for (const StartedPattern* each : all) {
      if (each->starts() == 0) return false;
    }
    return true;
  }
  static bool Ended(const std::vector<StartedPattern*>& all, int times = 1) {
    for (const StartedPattern* each : all) {
      if (each->ends() < times) return false;
    }
    return true;
  }
  void DoneAll(const std::vector<StartedPattern*>& all, int32_t channel = 0) {
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) all[rank]->Done(fabric_->channel(rank, channel));
  }
  void ExpectGood(const std::vector<StartedPattern*>& all) {
    for (const StartedPattern* each : all) {
      EXPECT_EQ(each->starts(), 1);
      EXPECT_EQ(each->ends(), 1);
      EXPECT_EQ(each->packs(), each->rounds());
      EXPECT_EQ(each->error().message, "");
      EXPECT_EQ(each->damage(), "");
    }
  }
  void ExchangeAll(uint64_t serial, int32_t channel = 0) {
    const auto all = StartAll(serial, channel);
    ASSERT_TRUE(fabric_->StepUntil([&] { return Started(all); }));
    DoneAll(all, channel);
    ASSERT_TRUE(fabric_->StepUntil([&] { return Ended(all); }));
    ExpectGood(all);
  }

  std::vector<std::unique_ptr<StartedPattern>> patterns_;
  std::unique_ptr<MoeFabric> fabric_;
};

INSTANTIATE_TEST_SUITE_P(Mappings, StartedExchangeTest,
                         ::testing::Values(Mapping::kNone, Mapping::kSome, Mapping::kAll));

TEST_P(StartedExchangeTest, ResultsMayBeAskedForBeforeOrAfterTheyArrive) {
  Create(3);
  for (uint64_t serial = 1; serial < 20; ++serial) {
    const auto all = StartAll(serial);
    ASSERT_TRUE(fabric_->StepUntil([&] { return Started(all); }));
    if (serial % 2 == 0) {
      fabric_->StepAll(200);
      for (const StartedPattern* each : all) EXPECT_EQ(each->ends(), 0) << "nobody asked";
    }
    DoneAll(all);
    ASSERT_TRUE(fabric_->StepUntil([&] { return Ended(all); }));
    ExpectGood(all);
  }
}

// Every rank in an order and at a pace of its own, over two channels and a fabric that is slow and busy.
TEST_P(StartedExchangeTest, RandomPaces) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const FabricOptions options{.ranks = 2 + static_cast<int32_t>(seed % 3),
                                .seed = seed,
                                .mapping = GetParam(),
                                .again_probability = 0.3,
                                .loss_probability = 0.1,
                                .jitter_us = 5,
                                .early_completions = seed % 3 == 0,
                                .inline_executors = seed % 2 == 0};
    Create(options);
    constexpr int kExchanges = 12;
    struct Place {
      int next = 0;
      StartedPattern* current = nullptr;
      bool asked = false;
    };
    std::vector<Place> places(options.ranks * 2);
    std::vector<StartedPattern*> all;
    const auto move = [&](int32_t rank, int32_t channel) {
      Place& place = places[rank * 2 + channel];
      if (place.current == nullptr) {
        if (place.next == kExchanges) return;
        place.current = &Start(rank, 2 + 2 * place.next++ + channel, channel);
        all.push_back(place.current);
      } else if (!place.asked && place.current->starts() == 1) {
        place.current->Done(fabric_->channel(rank, channel));
        place.asked = true;
      } else if (place.current->ends() == 1) {
        place = Place{.next = place.next};
      }
    };
    const bool finished = fabric_->StepUntil(
        [&] {
          for (int32_t rank = 0; rank < options.ranks; ++rank) {
            for (int32_t channel = 0; channel < 2; ++channel) {
              if (fabric_->Chance(0.3)) move(rank, channel);
            }
          }
          return all.size() == size_t{kExchanges} * 2 * options.ranks && Ended(all);
        },
        200'000);
    ASSERT_TRUE(finished);
    ExpectGood(all);
    fabric_.reset();
    patterns_.clear();
  }
}

TEST_P(StartedExchangeTest, WhatDoesNotFitIsRefusedAndTheChannelGoesOn) {
  Create(2);
  ExchangeAll(2);
  const auto all = StartAll(4);
  ASSERT_TRUE(fabric_->StepUntil([&] { return Started(all); }));
  for (int32_t rank = 0; rank < 2; ++rank) {
    StartedPattern& mine = *all[rank];
    const int32_t sequence = static_cast<int32_t>(mine.sequence());
    Channel& channel = fabric_->channel(rank, 0);
    int ends = 0;
    for (const auto& [number, kind] :
         {std::pair(sequence - 1, ExchangeKind::kCombine), std::pair(sequence + 1, ExchangeKind::kCombine),
          std::pair(sequence, ExchangeKind::kDispatch)}) {
      mine.Done(channel, number, kind);
      ASSERT_EQ(mine.ends(), ++ends);
      EXPECT_EQ(mine.error().code, ErrorCode::kFailedPrecondition);
      EXPECT_NE(mine.error().message.find("no call " + std::to_string(number) + " was started here"), std::string::npos)
          << mine.error().message;
    }
    mine.Done(fabric_->channel(rank, 1));
    EXPECT_EQ(mine.ends(), ++ends) << "another channel";
    mine.Done(channel);
    mine.Done(channel);  // the first one may still wait for its peer
    EXPECT_EQ(mine.error().code, ErrorCode::kFailedPrecondition) << "twice";
  }
  ASSERT_TRUE(fabric_->StepUntil([&] { return Ended(all, 6); }));
  ExchangeAll(6);
  ExchangeAll(8, 1);
}

TEST_P(StartedExchangeTest, ClosedBetweenTheHalves) {
  Create(2);
  const auto all = StartAll(2);
  ASSERT_TRUE(fabric_->StepUntil([&] { return Started(all); }));
  fabric_->StepAll(100);
  for (int32_t rank = 0; rank < 2; ++rank) fabric_->context(rank).Close(fabric_->In(0));
  DoneAll(all);
  ASSERT_TRUE(Ended(all));
  for (const StartedPattern* each : all) {
    EXPECT_EQ(each->starts(), 1);
    EXPECT_EQ(each->ends(), 1);
    EXPECT_EQ(each->error().code, ErrorCode::kCancelled) << each->error().message;
  }
}

TEST_P(StartedExchangeTest, AFailureBeforeItIsPackedEndsTheFirstHalf) {
  Create(2);
  StartedPattern& waiting = Start(1, 2);  // rank 0 never numbers it
  fabric_->Sleep(fabric_->context(1).config().timeout_us);
  ASSERT_TRUE(fabric_->StepUntil([&] { return waiting.starts() == 1; }));
  EXPECT_EQ(waiting.start_error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(waiting.packs(), 0);
  EXPECT_EQ(waiting.ends(), 0);
}

TEST_P(StartedExchangeTest, AnAbsentRankIsNamedByTheSecondHalf) {
  Create(3);
  const std::vector<StartedPattern*> present{&Start(0, 2), &Start(1, 2)};
  ASSERT_TRUE(fabric_->StepUntil([&] { return Started(present); }));
  fabric_->StepAll(100);
  present[0]->Done(fabric_->channel(0, 0));  // rank 1 asks only after it has failed
  fabric_->Sleep(fabric_->context(0).config().timeout_us);
  ASSERT_TRUE(fabric_->StepUntil(
      [&] { return fabric_->context(0).error() != nullptr && fabric_->context(1).error() != nullptr; }));
  present[1]->Done(fabric_->channel(1, 0));
  for (const StartedPattern* each : present) {
    ASSERT_EQ(each->ends(), 1);
    EXPECT_EQ(each->error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(each->error().message.find("for rank(s) 2;"), std::string::npos) << each->error().message;
  }
}

TEST_P(StartedExchangeTest, AStartBehindOneThatNobodyEndsSaysSo) {
  Create(2);
  const auto first = StartAll(2);
  ASSERT_TRUE(fabric_->StepUntil([&] { return Started(first); }));
  const auto second = StartAll(4);
  fabric_->StepAll(100);
  EXPECT_FALSE(Started(second)) << "one at a time on a channel";
  fabric_->Sleep(fabric_->context(0).config().timeout_us);
  ASSERT_TRUE(fabric_->StepUntil([&] { return Started(second); }));
  for (const StartedPattern* each : second) {
    EXPECT_NE(each->start_error().message.find("call 1 was started on this rank and nobody has called its done"),
              std::string::npos)
        << each->start_error().message;
  }
  DoneAll(first);
  EXPECT_TRUE(Ended(first)) << "with the same error";
}

}  // namespace
}  // namespace jax_fabric::moe
