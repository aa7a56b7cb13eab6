// All kernels, over many shapes, against dense loops that know nothing of messages.
#include "csrc/kernels/moe_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "csrc/kernels/cpu/dense_checker.h"
#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::testing {
namespace {

// Random values where the program may have put some, NaN in the padding.
std::vector<Array> ExpertOutputs(World& world, ElementType type) {
  std::vector<Array> y;
  for (int64_t r = 0; r < world.ranks(); ++r) {
    const int64_t hidden = world.config().hidden;
    Array array(type, world.config().capacity * hidden);
    for (int64_t i = 0; i < world.rank(r).routed_rows() * hidden; ++i) array.Set(i, world.RandomFloat());
    y.push_back(std::move(array));
  }
  return y;
}

// Poison in the padding as well, which the program's own row weights could have there.
std::vector<std::vector<float>> RowScalars(World& world) {
  std::vector<std::vector<float>> scalars;
  for (int64_t r = 0; r < world.ranks(); ++r) {
    scalars.emplace_back(world.config().capacity, std::nanf(""));
    for (int64_t c = 0; c < world.rank(r).routed_rows(); ++c) scalars.back()[c] = world.RandomFloat();
    std::fill(world.rank(r).row_weights.begin() + world.rank(r).routed_rows(), world.rank(r).row_weights.end(),
              std::nanf(""));
  }
  return scalars;
}

std::vector<Array> TokenCotangents(World& world, ElementType type) {
  std::vector<Array> x;
  for (int64_t r = 0; r < world.ranks(); ++r) {
    RankState& state = world.rank(r);
    x.push_back(world.RandomArray(type, state.t_rows * int64_t{world.config().hidden}));
    for (int64_t t = 0; t < state.t_rows; ++t) {
      const int32_t* index = state.index.data() + t * world.ranks();
      if (std::any_of(index, index + world.ranks(), [](int32_t i) { return i >= 0; })) continue;
      for (int64_t h = 0; h < world.config().hidden; ++h) x[r].Set(t * world.config().hidden + h, std::nanf(""));
    }
  }
  return x;
}

void RunAll(const WorldConfig& config, uint64_t seed) {
  SCOPED_TRACE(config.Describe() + "seed " + std::to_string(seed));
  World world(config, seed);
  DenseChecker checker(world);
  const bool zero_padding = seed % 2 == 0;
  world.Dispatch(/*drop_overflow=*/true, zero_padding);
  ASSERT_NO_FATAL_FAILURE(checker.CheckDispatch(zero_padding));

  const std::vector<Array> y = ExpertOutputs(world, config.y_type);
  const std::vector<std::vector<float>> row_scalars = RowScalars(world);
  ASSERT_NO_FATAL_FAILURE(checker.CheckCombine(y, true, world.Combine(y, true)));
  const World::CombineResult back = world.Combine(y, false, &row_scalars);
  ASSERT_NO_FATAL_FAILURE(checker.CheckCombine(y, false, back));
  ASSERT_NO_FATAL_FAILURE(checker.CheckScalars(row_scalars, back));

  const std::vector<Array> x = TokenCotangents(world, config.x_type);
  ASSERT_NO_FATAL_FAILURE(checker.CheckRedispatch(x, true, &y, world.Redispatch(x, true, &y)));
  ASSERT_NO_FATAL_FAILURE(checker.CheckRedispatch(x, false, nullptr, world.Redispatch(x, false, nullptr)));
}

std::vector<std::vector<uint8_t>> Messages(World& world) {
  std::vector<std::vector<uint8_t>> messages;
  for (int64_t r = 0; r < world.ranks(); ++r) {
    for (int64_t s = 0; s < world.ranks(); ++s) {
      messages.push_back(world.Message(r, s));
      // Sequence numbers differ.
      reinterpret_cast<MessageHeader*>(messages.back().data())->sequence = 0;
    }
  }
  return messages;
}

// Nothing of what a slot held before travels in the gaps of a message, whose rows here are not multiples of 16 bytes.
void TestMessages(const WorldConfig& config) {
  World world(config, 9);
  std::vector<std::vector<uint8_t>> first[4];
  for (uint8_t poison : {0xff, 0xa5}) {
    world.set_slot_poison(poison);
    std::vector<std::vector<uint8_t>> messages[4];
    world.Dispatch();
    messages[0] = Messages(world);
    std::vector<Array> x, y;
    std::vector<std::vector<float>> scalars;
    for (int64_t r = 0; r < world.ranks(); ++r) {
      x.push_back(world.rank(r).x);
      y.push_back(world.rank(r).tokens);
      scalars.push_back(world.rank(r).row_weights);
    }
    world.Combine(y, true);
    messages[1] = Messages(world);
    world.Combine(y, false, &scalars);
    messages[2] = Messages(world);
    world.Redispatch(x, true, nullptr);
    messages[3] = Messages(world);
    for (int kind = 0; kind < 4; ++kind) {
      if (poison == 0xff) first[kind] = messages[kind];
      EXPECT_EQ(messages[kind], first[kind]) << "kind " << kind;
    }
  }
}

TEST(MoeKernelsTest, MessagesDependOnInputsOnly) {
  WorldConfig config = {.ranks = 3, .experts = 8, .max_tokens = 9, .top_k = 4, .hidden = 7};
  TestMessages(config);
  config.quantised = true;
  config.dispatch_type = ElementType::kFloat8E4m3fn;
  TestMessages(config);
}

template <typename T, size_t n>
T Pick(std::mt19937_64& random, const T (&values)[n]) {
  return values[random() % n];
}

WorldConfig RandomConfig(std::mt19937_64& random) {
  WorldConfig config;
  config.ranks = Pick(random, {1, 2, 3, 5, 8, 12, 24});
  const int32_t k = 1 + static_cast<int32_t>(random() % 5);
  config.experts = Pick(random, {1, config.ranks, config.ranks * k + 1, config.ranks * k});
  config.top_k = std::min(config.experts, Pick(random, {1, 2, 8, 11}));
  config.hidden = Pick(random, {1, 7, 8, 100, 127, 128, 513, 2880, 7168});
  // Small enough for dense loops: elements of all expert rows of all ranks.
  const int64_t per_token = int64_t{config.ranks} * config.ranks * std::min(config.top_k, k + 1) * config.hidden;
  config.max_tokens = static_cast<int32_t>(std::clamp<int64_t>(500'000 / per_token, 1, 1 + random() % 12));
  config.routing = Pick(random, kAllRoutings);
  config.cache_bytes = Pick(random, {int64_t{0}, kAlwaysCached});
  config.odd_ids = random() % 2 == 0;
  constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16,
                                    ElementType::kFloat8E4m3fn};
  const auto other = [&](ElementType type) { return random() % 3 == 0 ? Pick(random, kTypes) : type; };
  config.x_type = Pick(random, kTypes);
  config.dispatch_type = other(config.x_type);
  config.tokens_type = other(config.dispatch_type);
  config.y_type = other(config.tokens_type);
  config.combine_type = other(config.y_type);
  config.out_type = other(config.combine_type);
  config.redispatch_type = other(config.x_type);
  if (random() % 4 == 0) {
    config.quantised = true;
    config.dispatch_type = ElementType::kFloat8E4m3fn;
  }
  if (random() % 4 == 0) config.capacity = static_cast<int64_t>(random() % (2 * config.max_tokens + 1));
  if (random() % 2 == 0) config.private_tokens = 1 + static_cast<int32_t>(random() % config.max_tokens);
  if (random() % 4 == 0) {
    for (int32_t r = 0; r < config.ranks; ++r) config.absent.push_back(random() % 3 == 0);
  }
  return config;
}

TEST(MoeKernelsTest, OneTokenOneRank) { RunAll({}, 1); }

TEST(MoeKernelsTest, TypicalDecode) {
  RunAll({.ranks = 8,
          .experts = 64,
          .max_tokens = 16,
          .top_k = 8,
          .hidden = 256,
          .x_type = ElementType::kBfloat16,
          .dispatch_type = ElementType::kBfloat16,
          .tokens_type = ElementType::kBfloat16,
          .y_type = ElementType::kBfloat16,
          .combine_type = ElementType::kBfloat16,
          .out_type = ElementType::kBfloat16},
         2);
}

TEST(MoeKernelsTest, EveryRouting) {
  for (Routing routing : kAllRoutings) {
    RunAll({.ranks = 5, .experts = 16, .max_tokens = 9, .top_k = 8, .hidden = 100, .routing = routing}, 3);
  }
}

TEST(MoeKernelsTest, TopKOfAllExperts) {
  RunAll({.ranks = 3, .experts = 100, .max_tokens = 4, .top_k = 100, .hidden = 7}, 4);
  RunAll({.ranks = 1, .experts = 300, .max_tokens = 2, .top_k = 300, .hidden = 3, .odd_ids = false}, 5);
  for (const int32_t experts : {130, 500, 1400}) {
    RunAll({.ranks = 2, .experts = experts, .max_tokens = 9, .top_k = 9, .hidden = 3}, 14);
  }
}

TEST(MoeKernelsTest, ManyRanks) {
  RunAll({.ranks = 64, .experts = 130, .max_tokens = 2, .top_k = 8, .hidden = 5}, 6);
  RunAll({.ranks = 128, .experts = 1, .max_tokens = 1, .top_k = 1, .hidden = 3}, 7);
}

TEST(MoeKernelsTest, NoCapacity) { RunAll({.ranks = 3, .experts = 7, .top_k = 2, .capacity = 0}, 8); }

TEST(MoeKernelsTest, Quantised) {
  constexpr ElementType kBfloat16 = ElementType::kBfloat16;
  constexpr ElementType kFloat8 = ElementType::kFloat8E4m3fn;
  for (ElementType x_type : {kBfloat16, kFloat8}) {
    for (ElementType tokens_type : {kBfloat16, kFloat8}) {
      for (int64_t cache_bytes : {int64_t{0}, kAlwaysCached}) {
        RunAll({.ranks = 3,
                .experts = 8,
                .max_tokens = 7,
                .top_k = 3,
                .hidden = 300,
                .cache_bytes = cache_bytes,
                .x_type = x_type,
                .dispatch_type = kFloat8,
                .tokens_type = tokens_type,
                .quantised = true},
               10);
      }
    }
  }
}

// Rows of every way to send them: of 16, 8 and 1 element at once, and with a last block that is short.
TEST(MoeKernelsTest, QuantisedWhatIsNotFinite) {
  for (const int32_t hidden : {16, 296, 300, 304, 7168, 8320}) {
    for (ElementType x_type : {ElementType::kBfloat16, ElementType::kFloat32, ElementType::kFloat16}) {
      RunAll({.ranks = 3,
              .experts = 8,
              .max_tokens = 5,
              .top_k = 3,
              .hidden = hidden,
              .odd_values = true,
              .x_type = x_type,
              .dispatch_type = ElementType::kFloat8E4m3fn,
              .tokens_type = ElementType::kFloat8E4m3fn,
              .quantised = true},
             15);
    }
  }
}

class RandomShapesTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(RandomShapesTest, AgreesWithTheOracle) {
  std::mt19937_64 random(GetParam());
  for (int i = 0; i < 50; ++i) {
    const WorldConfig config = RandomConfig(random);
    ASSERT_NO_FATAL_FAILURE(RunAll(config, random() % 1'000'000));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomShapesTest, ::testing::Range<uint64_t>(0, 8));

}  // namespace
}  // namespace jax_fabric::kernels::testing
