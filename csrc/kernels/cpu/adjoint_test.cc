// Each kernel pair is the transpose of another: <D x, y> == <x, D^T y>, the property that gradients rest on.
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::testing {
namespace {

// A sum of products, with the sum of their magnitudes, to which rounding errors are in proportion.
class InnerProduct {
 public:
  void Add(double a, double b) {
    sum_ += a * b;
    magnitude_ += std::abs(a * b);
  }
  double sum() const { return sum_; }
  double magnitude() const { return magnitude_; }

 private:
  double sum_ = 0;
  double magnitude_ = 0;
};

void ExpectEqual(const InnerProduct& a, const InnerProduct& b) {
  EXPECT_NEAR(a.sum(), b.sum(), 2e-6 * (a.magnitude() + b.magnitude()) + 1e-30);
}

class AdjointTest : public ::testing::TestWithParam<WorldConfig> {
 protected:
  AdjointTest() : world_(GetParam(), 11), hidden_(GetParam().hidden) { world_.Dispatch(/*drop_overflow=*/true); }

  // Random on the expert rows, NaN in the padding.
  std::vector<Array> RandomRows() {
    std::vector<Array> rows;
    for (int64_t r = 0; r < world_.ranks(); ++r) {
      rows.emplace_back(ElementType::kFloat32, world_.config().capacity * hidden_);
      for (int64_t i = 0; i < RowElements(r); ++i) rows[r].Set(i, world_.RandomFloat());
    }
    return rows;
  }
  std::vector<std::vector<float>> RandomScalars() {
    std::vector<std::vector<float>> scalars;
    for (int64_t r = 0; r < world_.ranks(); ++r) {
      scalars.emplace_back(world_.config().capacity, std::nanf(""));
      for (int64_t c = 0; c < world_.rank(r).routed_rows(); ++c) scalars[r][c] = world_.RandomFloat();
    }
    return scalars;
  }
  std::vector<Array> RandomTokens() {
    std::vector<Array> tokens;
    for (int64_t r = 0; r < world_.ranks(); ++r) {
      tokens.push_back(world_.RandomArray(ElementType::kFloat32, world_.rank(r).t_rows * hidden_));
    }
    return tokens;
  }

  int64_t RowElements(int64_t r) { return world_.rank(r).routed_rows() * hidden_; }

  bool IsRouted(int64_t r, int64_t t) {
    for (int64_t peer = 0; peer < world_.ranks(); ++peer) {
      if (world_.rank(r).index[t * world_.ranks() + peer] >= 0) return true;
    }
    return false;
  }

  // Adds <a, b> over the elements of routed tokens.
  void AddTokens(const Array& a, const Array& b, int64_t r, InnerProduct& product) {
    for (int64_t t = 0; t < world_.rank(r).t_rows; ++t) {
      if (!IsRouted(r, t)) continue;
      for (int64_t h = 0; h < hidden_; ++h) product.Add(a.Get(t * hidden_ + h), b.Get(t * hidden_ + h));
    }
  }

  World world_;
  const int64_t hidden_;
};

TEST_P(AdjointTest, DispatchBackIsTheTransposeOfDispatch) {
  const std::vector<Array> y = RandomRows();
  const std::vector<std::vector<float>> scalars = RandomScalars();
  const World::CombineResult back = world_.Combine(y, /*weighted=*/false, &scalars);
  InnerProduct rows, tokens, row_weights, weights;
  for (int64_t r = 0; r < world_.ranks(); ++r) {
    RankState& state = world_.rank(r);
    for (int64_t i = 0; i < RowElements(r); ++i) rows.Add(state.tokens.Get(i), y[r].Get(i));
    AddTokens(state.x, back.out[r], r, tokens);
    for (int64_t c = 0; c < state.routed_rows(); ++c) row_weights.Add(state.row_weights[c], scalars[r][c]);
    for (size_t i = 0; i < state.weights.size(); ++i) {
      if (state.slot[i] >= 0) {
        weights.Add(state.weights[i], back.scalars[r][i]);
      } else {
        EXPECT_EQ(back.scalars[r][i], 0.0f);
      }
    }
  }
  ExpectEqual(rows, tokens);
  ExpectEqual(row_weights, weights);
}

TEST_P(AdjointTest, RedispatchIsTheTransposeOfCombine) {
  const std::vector<Array> y = RandomRows();
  const std::vector<Array> x = RandomTokens();
  const World::CombineResult combined = world_.Combine(y, /*weighted=*/true);
  const World::RedispatchResult moved = world_.Redispatch(x, /*weighted=*/true, &y);
  InnerProduct tokens, rows, weights;
  for (int64_t r = 0; r < world_.ranks(); ++r) {
    AddTokens(combined.out[r], x[r], r, tokens);
    for (int64_t i = 0; i < RowElements(r); ++i) rows.Add(y[r].Get(i), moved.out[r].Get(i));
    // Combine is linear in the weights as well: their cotangents are the dots.
    for (int64_t c = 0; c < world_.rank(r).routed_rows(); ++c) {
      weights.Add(world_.rank(r).row_weights[c], moved.dots[r][c]);
    }
  }
  ExpectEqual(tokens, rows);
  ExpectEqual(tokens, weights);
}

TEST_P(AdjointTest, UnweightedRedispatchIsDispatch) {
  std::vector<Array> x;
  for (int64_t r = 0; r < world_.ranks(); ++r) x.push_back(world_.rank(r).x);
  const World::RedispatchResult moved = world_.Redispatch(x, /*weighted=*/false, nullptr);
  for (int64_t r = 0; r < world_.ranks(); ++r) {
    for (int64_t i = 0; i < RowElements(r); ++i) ASSERT_EQ(moved.out[r].Bits(i), world_.rank(r).tokens.Bits(i));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AdjointTest,
    ::testing::Values(WorldConfig{.ranks = 1, .experts = 3, .top_k = 2, .hidden = 100, .full_batches = true},
                      WorldConfig{.ranks = 4, .experts = 16, .max_tokens = 24, .top_k = 4, .hidden = 64},
                      WorldConfig{.ranks = 3, .experts = 10, .max_tokens = 20, .top_k = 8, .hidden = 513},
                      WorldConfig{.ranks = 8, .experts = 17, .max_tokens = 16, .top_k = 11, .hidden = 127},
                      WorldConfig{.ranks = 5, .experts = 5, .top_k = 5, .hidden = 7, .routing = Routing::kZipf},
                      WorldConfig{.ranks = 2, .experts = 8, .top_k = 8, .hidden = 40, .routing = Routing::kOneRank},
                      WorldConfig{
                          .ranks = 4, .experts = 9, .max_tokens = 16, .top_k = 4, .hidden = 31, .capacity = 20}),
    [](const auto& info) {
      return "N" + std::to_string(info.param.ranks) + "E" + std::to_string(info.param.experts) + "H" +
             std::to_string(info.param.hidden);
    });

}  // namespace
}  // namespace jax_fabric::kernels::testing
