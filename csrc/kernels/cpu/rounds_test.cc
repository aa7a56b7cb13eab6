// Calls that take several rounds, against the same call in one: not a bit may differ.
#include "csrc/kernels/rounds.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::testing {
namespace {

void ExpectSame(const std::vector<Array>& actual, const std::vector<Array>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t r = 0; r < actual.size(); ++r) {
    ASSERT_EQ(actual[r].size(), expected[r].size());
    for (int64_t i = 0; i < actual[r].size(); ++i) {
      ASSERT_EQ(actual[r].Bits(i), expected[r].Bits(i)) << "rank " << r << " element " << i;
    }
  }
}

// As bits, so that NaN is equal to itself.
void ExpectSame(const std::vector<std::vector<float>>& actual, const std::vector<std::vector<float>>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t r = 0; r < actual.size(); ++r) {
    ASSERT_EQ(actual[r].size(), expected[r].size());
    for (size_t i = 0; i < actual[r].size(); ++i) {
      ASSERT_EQ(std::signbit(actual[r][i]), std::signbit(expected[r][i]));
      ASSERT_TRUE(actual[r][i] == expected[r][i] || (std::isnan(actual[r][i]) && std::isnan(expected[r][i])));
    }
  }
}

// All exchanges of one world, with operands that are the same for every P.
struct Results {
  World world;
  std::vector<Array> tokens, y, x;
  std::vector<std::vector<float>> scales;
  std::vector<std::vector<float>> scalars;
  World::CombineResult weighted, back;
  World::RedispatchResult moved;

  Results(const WorldConfig& config, uint64_t seed) : world(config, seed) {
    world.Dispatch(/*drop_overflow=*/true, /*zero_padding=*/seed % 2 == 0);
    for (int64_t r = 0; r < world.ranks(); ++r) {
      RankState& state = world.rank(r);
      tokens.push_back(state.tokens);
      scales.push_back(state.scales);
      y.push_back(world.RandomArray(config.y_type, world.config().capacity * config.hidden));
      scalars.emplace_back(world.config().capacity);
      for (float& scalar : scalars.back()) scalar = world.RandomFloat();
      x.push_back(world.RandomArray(config.x_type, int64_t{state.t_rows} * config.hidden));
    }
    weighted = world.Combine(y, true);
    back = world.Combine(y, false, &scalars);
    moved = world.Redispatch(x, true, &y);
  }
};

// The most rows that any rank has for any other.
int64_t MostRows(World& world) {
  int64_t most = 0;
  for (int64_t r = 0; r < world.ranks(); ++r) {
    for (int64_t s = 0; s < world.ranks(); ++s) most = std::max(most, world.rank(r).rows_from(s));
  }
  return most;
}

void CompareWithOneRound(WorldConfig config, uint64_t seed) {
  Results one(config, seed);
  ASSERT_EQ(one.world.rounds(), 1);
  const int64_t most = MostRows(one.world);
  for (int32_t p = 1; p <= config.max_tokens; ++p) {
    config.private_tokens = p;
    SCOPED_TRACE(config.Describe() + "seed " + std::to_string(seed));
    Results many(config, seed);
    const int32_t rounds = many.world.rounds();
    EXPECT_GE(rounds, (most + p - 1) / p);
    EXPECT_LE(rounds, (config.max_tokens + p - 1) / p);
    EXPECT_EQ(rounds == 1, most <= p);
    for (int64_t r = 0; r < config.ranks; ++r) {
      RankState& actual = many.world.rank(r);
      RankState& expected = one.world.rank(r);
      ASSERT_EQ(actual.index, expected.index);
      ASSERT_EQ(actual.slot, expected.slot);
      ASSERT_EQ(actual.positions, expected.positions);
      ASSERT_EQ(actual.group_sizes, expected.group_sizes);
      ASSERT_EQ(actual.dropped, expected.dropped);
      for (int64_t s = 0; s < config.ranks; ++s) ASSERT_EQ(actual.rows_from(s), expected.rows_from(s));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSame(many.tokens, one.tokens));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(many.scales, one.scales));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(many.weighted.out, one.weighted.out));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(many.back.out, one.back.out));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(many.back.scalars, one.back.scalars));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(many.moved.out, one.moved.out));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(many.moved.dots, one.moved.dots));
  }
}

class EveryP : public ::testing::TestWithParam<uint64_t> {};

TEST_P(EveryP, GivesTheBitsOfOneRound) {
  std::mt19937_64 random(GetParam());
  constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16};
  for (int i = 0; i < 25; ++i) {
    WorldConfig config;
    config.ranks = 1 + random() % 5;
    config.experts = 1 + random() % (3 * config.ranks);
    config.max_tokens = 1 + random() % 12;
    config.top_k = 1 + random() % std::min(config.experts, 5);
    config.hidden = 1 + random() % 24;
    config.routing = kAllRoutings[random() % std::size(kAllRoutings)];
    config.full_batches = random() % 2 == 0;
    config.x_type = config.tokens_type = config.y_type = config.out_type = kTypes[random() % 3];
    config.dispatch_type = kTypes[random() % 3];
    config.combine_type = kTypes[random() % 3];
    if (random() % 3 == 0) {
      config.quantised = true;
      config.dispatch_type = ElementType::kFloat8E4m3fn;
      config.tokens_type = random() % 2 == 0 ? config.tokens_type : config.dispatch_type;
    }
    if (random() % 4 == 0) config.capacity = random() % (2 * config.max_tokens);
    ASSERT_NO_FATAL_FAILURE(CompareWithOneRound(config, random() % 1'000'000));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EveryP, ::testing::Range<uint64_t>(0, 8));

// Tokens that go to one rank after the other: a round ends where the first rank has its P rows.
TEST(Rounds, EndWhereTheFirstRankIsFull) {
  World world({.ranks = 2, .experts = 2, .max_tokens = 10, .private_tokens = 3, .odd_ids = false, .full_batches = true},
              1);
  const std::vector<int32_t> experts = {0, 0, 1, 0, 1, 1, 0, 1, 1, 1};
  for (int64_t r = 0; r < 2; ++r) world.rank(r).experts = experts;
  world.Dispatch();
  EXPECT_EQ(world.rounds(), 2);
  for (int64_t r = 0; r < 2; ++r) {
    EXPECT_EQ(world.rank(r).token_ends, (std::vector<int32_t>{6, 10, 10, 10}));
  }
}

// A rank that needs fewer rounds than another takes part in all of them.
TEST(Rounds, OfTheRankThatNeedsMost) {
  World world({.ranks = 3, .experts = 3, .max_tokens = 6, .private_tokens = 2, .odd_ids = false, .full_batches = true},
              1);
  world.rank(0).experts = {2, 2, 2, 2, 2, 2};
  world.rank(1).experts = {0, 0, 1, 1, 2, 2};
  world.rank(2).experts = {-1, -1, -1, -1, -1, -1};
  world.Dispatch();
  EXPECT_EQ(world.rounds(), 3);
  EXPECT_EQ(world.rank(0).token_ends, (std::vector<int32_t>{2, 4, 6}));
  EXPECT_EQ(world.rank(1).token_ends, (std::vector<int32_t>{6, 6, 6}));
  EXPECT_EQ(world.rank(2).rows, (std::vector<int32_t>{2, 2, 2, 2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(world.rank(0).rows, (std::vector<int32_t>{0, 0, 0, 2, 0, 0, 0, 0, 0}));
}

// Routes come back from the program; whatever they hold, nothing outside of the arrays is named.
TEST(Rounds, RangesOfAnyNumbers) {
  MoeShape shape;
  shape.ranks = 2;
  shape.max_tokens = 7;
  shape.private_tokens = 2;
  ASSERT_EQ(shape.MaxRounds(), 4);
  std::mt19937_64 random(1);
  const int32_t values[] = {-2147483647 - 1, -1, 0, 1, 2, 3, 7, 8, 2147483647};
  for (int i = 0; i < 1000; ++i) {
    std::vector<int32_t> rows(8), ends(4);
    for (int32_t& each : rows) each = values[random() % std::size(values)];
    for (int32_t& each : ends) each = values[random() % std::size(values)];
    const ReceiveRoute receive{nullptr, rows.data()};
    const SendRoute send{nullptr, nullptr, ends.data()};
    EXPECT_GE(RoundsOf(shape, receive), 1);
    EXPECT_LE(RoundsOf(shape, receive), 4);
    for (int32_t round = 0; round < 4; ++round) {
      const IndexRange of_rows = RowsInRound(shape, receive, random() % 2, round);
      const IndexRange of_tokens = TokensInRound(shape, send, 5, round);
      EXPECT_TRUE(0 <= of_rows.begin && of_rows.size() >= 0 && of_rows.size() <= 2 && of_rows.end <= 7);
      EXPECT_TRUE(0 <= of_tokens.begin && of_tokens.size() >= 0 && of_tokens.end <= 5);
    }
  }
}

TEST(Rounds, SlotsShrinkWithP) {
  SlotLayout layout;
  layout.shape = {.ranks = 8, .experts_per_rank = 8, .experts = 64, .max_tokens = 8192, .top_k = 8, .hidden = 7168};
  layout.dispatch_type = layout.combine_type = layout.redispatch_type = ElementType::kBfloat16;
  const int64_t row = 7168 * 2;
  const int64_t metadata = 8192 * (8 + 8 * 8);
  EXPECT_EQ(layout.shape.MaxRounds(), 1);
  EXPECT_GE(layout.SlotBytes(), 8192 * row + metadata);
  layout.shape.private_tokens = 256;
  EXPECT_EQ(layout.shape.MaxRounds(), 32);
  EXPECT_GE(layout.SlotBytes(), 256 * row + metadata);
  EXPECT_LT(layout.SlotBytes(), 256 * row + metadata + 1024);
  layout.shape.private_tokens = 8191;
  EXPECT_EQ(layout.shape.MaxRounds(), 2);
}

}  // namespace
}  // namespace jax_fabric::kernels::testing
