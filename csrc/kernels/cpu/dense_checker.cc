#include "csrc/kernels/cpu/dense_checker.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::testing {
namespace {

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
  if (world.config().IsAbsent(rank)) return groups;
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

}  // namespace

DenseChecker::DenseChecker(World& world) : world_(world), config_(world.config()), hidden_(world.config().hidden) {
  for (int64_t r = 0; r < world.ranks(); ++r) {
    groups_.push_back(ExpectedRows(world, r));
    if (config_.quantised) quantised_.push_back(Quantised(world.rank(r)));
  }
}

void DenseChecker::CheckDispatch(bool zero_padding) {
  for (int64_t r = 0; r < world_.ranks(); ++r) CheckReceived(r, zero_padding);
  for (int64_t s = 0; s < world_.ranks(); ++s) CheckSendRoute(s);
}

void DenseChecker::CheckCombine(const std::vector<Array>& y, bool weighted, const World::CombineResult& result) {
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

void DenseChecker::CheckScalars(const std::vector<std::vector<float>>& row_scalars,
                                const World::CombineResult& result) {
  for (int64_t s = 0; s < world_.ranks(); ++s) {
    RankState& state = world_.rank(s);
    for (int64_t i = 0; i < state.t_rows * int64_t{config_.top_k}; ++i) {
      const int64_t expert = state.experts[i];
      float expected = 0;
      if (expert >= 0 && expert < config_.experts) {  // PositionOf is -1 at absent ranks
        const int64_t per_rank = state.layout.shape.experts_per_rank;
        const int64_t c = PositionOf(expert / per_rank, expert % per_rank, s, i / config_.top_k);
        if (c >= 0) expected = row_scalars[expert / per_rank][c];
      }
      ASSERT_TRUE(SameFloat(result.scalars[s][i], expected)) << "choice " << i;
    }
  }
}

void DenseChecker::CheckRedispatch(const std::vector<Array>& x, bool weighted, const std::vector<Array>* y,
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

int64_t DenseChecker::Total(int64_t rank) const {
  int64_t total = 0;
  for (const auto& group : groups_[rank]) total += static_cast<int64_t>(group.size());
  return total;
}

void DenseChecker::CheckReceived(int64_t r, bool zero_padding) {
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

void DenseChecker::CheckQuantisedRow(const RankState& state, int64_t c, const ExpertRow& row) {
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

void DenseChecker::CheckMovedRow(const RankState& state, int64_t c, const ExpertRow& row) {
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

void DenseChecker::CheckSendRoute(int64_t s) {
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

int64_t DenseChecker::PositionOf(int64_t rank, int64_t local_expert, int64_t source, int64_t token) const {
  int64_t c = 0;
  for (int64_t e = 0; e < local_expert; ++e) c += static_cast<int64_t>(groups_[rank][e].size());
  for (const ExpertRow& row : groups_[rank][local_expert]) {
    if (row.source == source && row.token == token) return c < config_.capacity ? c : -1;
    ++c;
  }
  return -1;
}

float DenseChecker::SumOverRanks(int64_t s, int64_t t, int64_t h, const std::vector<Array>& y, bool weighted) {
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

const std::vector<int64_t>& DenseChecker::PositionsOf(int64_t rank, int64_t s, int64_t t) {
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

}  // namespace jax_fabric::kernels::testing
