// All kernels, over many shapes, against dense loops that know nothing of messages.
#include "csrc/kernels/moe_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::testing {
namespace {

// One expert row: token t of rank `source` at local expert `expert`.
struct ExpertRow {
  int64_t source, token, row_to_rank, entry;
  float weight;
};

// Weight of an expert in a token's choices, summed by rising choice. False if the token does not name it.
bool WeightOf(const RankState& state, int64_t t, int64_t expert, float* weight) {
  const int64_t top_k = state.layout.shape.top_k;
  bool found = false;
  for (int64_t k = 0; k < top_k; ++k) {
    if (state.experts[t * top_k + k] != expert) continue;
    const float w = state.weights[t * top_k + k];
    *weight = found ? *weight + w : w;
    found = true;
  }
  return found;
}

// Everything that should arrive at a rank, in order: by (expert, source, token). Index of each row among those of its
// source for this rank, and of the expert among the token's experts there, by counting.
std::vector<std::vector<ExpertRow>> ExpectedRows(World& world, int64_t rank) {
  const MoeShape& shape = world.rank(rank).layout.shape;
  const int64_t first = rank * shape.experts_per_rank;
  std::vector<std::vector<ExpertRow>> groups(shape.experts_per_rank);
  for (int64_t s = 0; s < world.ranks(); ++s) {
    int64_t row_to_rank = 0;
    for (int64_t t = 0; t < world.rank(s).t_rows; ++t) {
      int64_t entry = 0;
      for (int64_t e = 0; e < shape.experts_per_rank && first + e < shape.experts; ++e) {
        float weight = 0;
        if (!WeightOf(world.rank(s), t, first + e, &weight)) continue;
        groups[e].push_back({s, t, row_to_rank, entry++, weight});
      }
      if (entry > 0) ++row_to_rank;
    }
  }
  return groups;
}

// The same number, or a NaN for a NaN.
bool SameFloat(float a, float b) { return std::memcmp(&a, &b, sizeof(float)) == 0 || (std::isnan(a) && std::isnan(b)); }

class Checker {
 public:
  explicit Checker(World& world) : world_(world), config_(world.config()), hidden_(world.config().hidden) {
    for (int64_t r = 0; r < world.ranks(); ++r) {
      groups_.push_back(ExpectedRows(world, r));
      if (config_.quantised) quantised_.push_back(Quantised(world.rank(r)));
    }
  }

  // ---- Dispatch

  void CheckDispatch(bool zero_padding) {
    for (int64_t r = 0; r < world_.ranks(); ++r) CheckReceived(r, zero_padding);
    for (int64_t s = 0; s < world_.ranks(); ++s) CheckSendRoute(s);
  }

  // ---- Combine

  void CheckCombine(const std::vector<Array>& y, bool weighted, const World::CombineResult& result) {
    for (int64_t s = 0; s < world_.ranks(); ++s) {
      RankState& state = world_.rank(s);
      for (int64_t t = 0; t < state.t_rows; ++t) {
        for (int64_t h = 0; h < hidden_; ++h) {
          const float expected = RoundTo(config_.out_type, SumOverRanks(s, t, h, y, weighted));
          const float actual = result.out[s].Get(t * hidden_ + h);
          ASSERT_TRUE(SameFloat(actual, expected))
              << actual << " and not " << expected << " for token " << t << " element " << h;
        }
      }
    }
  }

  void CheckScalars(const std::vector<std::vector<float>>& row_scalars, const World::CombineResult& result) {
    for (int64_t s = 0; s < world_.ranks(); ++s) {
      RankState& state = world_.rank(s);
      for (int64_t i = 0; i < state.t_rows * int64_t{config_.top_k}; ++i) {
        const int64_t expert = state.experts[i];
        float expected = 0;
        if (expert >= 0 && expert < config_.experts) {
          const int64_t per_rank = state.layout.shape.experts_per_rank;
          const int64_t c = PositionOf(expert / per_rank, expert % per_rank, s, i / config_.top_k);
          if (c >= 0) expected = row_scalars[expert / per_rank][c];
        }
        ASSERT_TRUE(SameFloat(result.scalars[s][i], expected)) << "choice " << i;
      }
    }
  }

  // ---- Redispatch

  void CheckRedispatch(const std::vector<Array>& x, bool weighted, const std::vector<Array>* y,
                       const World::RedispatchResult& result) {
    for (int64_t r = 0; r < world_.ranks(); ++r) {
      int64_t c = 0;
      for (const auto& group : groups_[r]) {
        for (const ExpertRow& row : group) {
          if (c == config_.capacity) break;
          float norm = 0;
          double dot = 0;
          for (int64_t h = 0; h < hidden_; ++h) {
            const float sent = RoundTo(config_.redispatch_type, x[row.source].Get(row.token * hidden_ + h));
            const float scaled = weighted ? row.weight * sent : sent;
            ASSERT_TRUE(SameFloat(result.out[r].Get(c * hidden_ + h), RoundTo(config_.out_type, scaled)));
            if (y == nullptr) continue;
            const double product = static_cast<double>(sent) * (*y)[r].Get(c * hidden_ + h);
            dot += product;
            norm += std::abs(product);
          }
          if (y != nullptr) {
            EXPECT_NEAR(result.dots[r][c], dot, 1e-5 * norm + 1e-30);
          }
          ++c;
        }
      }
      EXPECT_TRUE(result.out[r].FilledWith(0, c * hidden_, config_.capacity * hidden_));
      if (y == nullptr) continue;
      for (; c < config_.capacity; ++c) ASSERT_EQ(result.dots[r][c], 0.0f);
    }
  }

  int64_t Total(int64_t rank) const {
    int64_t total = 0;
    for (const auto& group : groups_[rank]) total += static_cast<int64_t>(group.size());
    return total;
  }

 private:
  void CheckReceived(int64_t r, bool zero_padding) {
    RankState& state = world_.rank(r);
    const MoeShape& shape = state.layout.shape;
    std::vector<int32_t> positions(state.positions.size(), -1);
    int64_t c = 0;
    for (int64_t e = 0; e < shape.experts_per_rank; ++e) {
      int64_t size = 0;
      for (const ExpertRow& row : groups_[r][e]) {
        if (c == shape.capacity) break;
        positions[(row.source * shape.max_tokens + row.row_to_rank) * shape.LocalTopK() + row.entry] =
            static_cast<int32_t>(c);
        ASSERT_TRUE(SameFloat(state.row_weights[c], row.weight));
        CheckMovedRow(state, c, row);
        ++size, ++c;
      }
      EXPECT_EQ(state.group_sizes[e], size) << "expert " << e << " of rank " << r;
    }
    EXPECT_EQ(state.positions, positions);
    EXPECT_EQ(state.dropped, Total(r) - c);
    const uint8_t padding = zero_padding ? 0 : kPoison;
    EXPECT_TRUE(state.tokens.FilledWith(padding, c * hidden_, shape.capacity * hidden_));
    if (config_.quantised && zero_padding) {
      for (size_t i = c * state.layout.ScalesOfRow(); i < state.scales.size(); ++i) EXPECT_EQ(state.scales[i], 0.0f);
    }
    for (; c < shape.capacity; ++c) EXPECT_EQ(state.row_weights[c], 0.0f);
  }

  void CheckQuantisedRow(const RankState& state, int64_t c, const ExpertRow& row) {
    const QuantisedRows& sent = quantised_[row.source];
    const int64_t scale_count = state.layout.ScalesOfRow();
    const bool raw = config_.tokens_type == ElementType::kFloat8E4m3fn;
    for (int64_t i = 0; raw && i < scale_count; ++i) {
      ASSERT_EQ(state.scales[c * scale_count + i], sent.scales[row.token * scale_count + i]) << "row " << c;
    }
    for (int64_t h = 0; h < hidden_; ++h) {
      const uint32_t bits = sent.bits[row.token * hidden_ + h];
      if (raw) {
        ASSERT_EQ(state.tokens.Bits(c * hidden_ + h), bits) << "row " << c << " element " << h;
        continue;
      }
      const float value = Decode(ElementType::kFloat8E4m3fn, &bits) * sent.scales[row.token * scale_count + h / 128];
      const float expected = RoundTo(config_.tokens_type, value);
      ASSERT_TRUE(SameFloat(state.tokens.Get(c * hidden_ + h), expected)) << "row " << c << " element " << h;
    }
  }

  void CheckMovedRow(const RankState& state, int64_t c, const ExpertRow& row) {
    if (config_.quantised) return CheckQuantisedRow(state, c, row);
    const Array& x = world_.rank(row.source).x;
    const bool moved = config_.x_type == config_.dispatch_type && config_.dispatch_type == config_.tokens_type;
    for (int64_t h = 0; h < hidden_; ++h) {
      const int64_t from = row.token * hidden_ + h;
      if (moved) {
        ASSERT_EQ(state.tokens.Bits(c * hidden_ + h), x.Bits(from)) << "row " << c << " element " << h;
      } else {
        const float expected = RoundTo(config_.tokens_type, RoundTo(config_.dispatch_type, x.Get(from)));
        ASSERT_TRUE(SameFloat(state.tokens.Get(c * hidden_ + h), expected)) << "row " << c << " element " << h;
      }
    }
  }

  void CheckSendRoute(int64_t s) {
    RankState& state = world_.rank(s);
    const MoeShape& shape = state.layout.shape;
    std::vector<int32_t> index(state.index.size(), -1);
    std::vector<int32_t> slot(state.slot.size(), -1);
    for (int64_t r = 0; r < world_.ranks(); ++r) {
      int64_t rows = 0;
      for (int64_t e = 0; e < shape.experts_per_rank; ++e) {
        for (const ExpertRow& row : groups_[r][e]) {
          if (row.source != s) continue;
          index[row.token * shape.ranks + r] = static_cast<int32_t>(row.row_to_rank);
          rows = std::max(rows, row.row_to_rank + 1);
          for (int64_t k = 0; k < shape.top_k; ++k) {
            if (state.experts[row.token * shape.top_k + k] != r * shape.experts_per_rank + e) continue;
            slot[row.token * shape.top_k + k] = static_cast<int32_t>(r * shape.LocalTopK() + row.entry);
          }
        }
      }
      EXPECT_EQ(world_.rank(r).rows_from(s), rows);
    }
    EXPECT_EQ(state.index, index);
    EXPECT_EQ(state.slot, slot);
  }

  // Position of a token's row at a local expert of a rank, or -1.
  int64_t PositionOf(int64_t rank, int64_t local_expert, int64_t source, int64_t token) const {
    int64_t c = 0;
    for (int64_t e = 0; e < local_expert; ++e) c += static_cast<int64_t>(groups_[rank][e].size());
    for (const ExpertRow& row : groups_[rank][local_expert]) {
      if (row.source == source && row.token == token) return c < config_.capacity ? c : -1;
      ++c;
    }
    return -1;
  }

  float SumOverRanks(int64_t s, int64_t t, int64_t h, const std::vector<Array>& y, bool weighted) {
    float sum = 0;
    bool first = true;
    for (int64_t r = 0; r < world_.ranks(); ++r) {
      const std::vector<int64_t>& positions = PositionsOf(r, s, t);
      if (positions.empty()) continue;
      float at_rank = 0;
      bool first_expert = true;
      for (int64_t c : positions) {
        if (c < 0) continue;
        const float value = y[r].Get(c * hidden_ + h);
        const float term = weighted ? world_.rank(r).row_weights[c] * value : value;
        at_rank = first_expert ? term : at_rank + term;
        first_expert = false;
      }
      const float sent = RoundTo(config_.combine_type, at_rank);
      sum = first ? sent : sum + sent;
      first = false;
    }
    return sum;
  }

  // Positions of a token at a rank, by rising expert, -1 where it was dropped. Kept for the last token and all ranks.
  const std::vector<int64_t>& PositionsOf(int64_t rank, int64_t s, int64_t t) {
    if (cached_source_ != s || cached_token_ != t) {
      cached_source_ = s, cached_token_ = t;
      cached_.assign(world_.ranks(), {});
      for (int64_t r = 0; r < world_.ranks(); ++r) {
        for (size_t e = 0; e < groups_[r].size(); ++e) {
          for (const ExpertRow& row : groups_[r][e]) {
            if (row.source == s && row.token == t) cached_[r].push_back(PositionOf(r, e, s, t));
          }
        }
      }
    }
    return cached_[rank];
  }

  World& world_;
  const WorldConfig& config_;
  const int64_t hidden_;
  std::vector<std::vector<std::vector<ExpertRow>>> groups_;  // [rank][local expert]
  std::vector<QuantisedRows> quantised_;                     // [rank]
  int64_t cached_source_ = -1, cached_token_ = -1;
  std::vector<std::vector<int64_t>> cached_;
};

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
  Checker checker(world);
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
