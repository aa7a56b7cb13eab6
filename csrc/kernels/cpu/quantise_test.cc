#include "csrc/kernels/cpu/quantise.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "csrc/kernels/cpu/float8_reference.h"
#include "csrc/kernels/float_types.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Quantised {
  std::vector<uint8_t> values;
  std::vector<float> scales;
};

class QuantiseTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    ops_ = RowOpsFor(GetParam());
    if (ops_ == nullptr) GTEST_SKIP() << "not on this machine";
  }

  Quantised Quantise(const std::vector<float>& row) {
    const auto hidden = static_cast<int64_t>(row.size());
    Quantised out{std::vector<uint8_t>(hidden + 1, 0x55), std::vector<float>((hidden + 127) / 128 + 1, -1)};
    QuantiseRow(*ops_, out.values.data(), out.scales.data(), row.data(), ElementType::kFloat32, hidden);
    EXPECT_EQ(out.values.back(), 0x55) << "written past the end";
    EXPECT_EQ(out.scales.back(), -1) << "written past the end";
    return out;
  }

  const RowOps* ops_ = nullptr;
};

TEST_P(QuantiseTest, BlocksHaveTheirOwnScales) {
  for (int64_t hidden : {1, 7, 127, 128, 129, 300}) {
    std::vector<float> row(hidden);
    for (int64_t i = 0; i < hidden; ++i) row[i] = static_cast<float>(i % 128 + 1) * std::exp2(i / 128 * 20.0f);
    const Quantised out = Quantise(row);
    for (int64_t begin = 0; begin < hidden; begin += 128) {
      const float largest = row[std::min(begin + 128, hidden) - 1];
      EXPECT_EQ(out.scales[begin / 128], largest * (1.0f / 448.0f));
      EXPECT_EQ(out.values[std::min(begin + 128, hidden) - 1], 0x7e) << "the largest becomes 448";
    }
  }
}

TEST_P(QuantiseTest, Zeros) {
  std::vector<float> row(200, 0.0f);
  row[3] = -0.0f;
  const Quantised out = Quantise(row);
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(out.values[i], i == 3 ? 0x80 : 0);
  EXPECT_EQ(out.scales[0], 1e-4f * (1.0f / 448.0f));
  EXPECT_EQ(out.scales[1], 1e-4f * (1.0f / 448.0f));
}

TEST_P(QuantiseTest, SmallBlocksShareTheLeastScale) {
  const Quantised out = Quantise({1e-5f, -1e-30f, 1e-40f});
  EXPECT_EQ(out.scales[0], 1e-4f * (1.0f / 448.0f));
  EXPECT_EQ(out.values[0], testing::NearestFloat8(44.8));
  EXPECT_EQ(out.values[1], 0x80);
  EXPECT_EQ(out.values[2], 0);
}

TEST_P(QuantiseTest, WhatIsNotFiniteBecomesNanAndLeavesTheRest) {
  std::vector<float> row(140, 3.0f);
  row[0] = kInfinity;
  row[1] = -kInfinity;
  row[2] = std::nanf("");
  row[139] = -std::nanf("");
  const Quantised out = Quantise(row);
  EXPECT_EQ(out.scales[0], 3.0f * (1.0f / 448.0f));
  EXPECT_EQ(out.scales[1], 3.0f * (1.0f / 448.0f));
  EXPECT_EQ(out.values[0], 0x7f);
  EXPECT_EQ(out.values[1], 0xff);
  EXPECT_EQ(out.values[2] & 0x7f, 0x7f);
  EXPECT_EQ(out.values[139] & 0x7f, 0x7f);
  for (int64_t i = 3; i < 139; ++i) EXPECT_EQ(out.values[i], 0x7e);
  EXPECT_EQ(Quantise({kInfinity, std::nanf("")}).scales[0], 1e-4f * (1.0f / 448.0f)) << "nothing finite";
}

TEST_P(QuantiseTest, LargestNumbers) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const Quantised out = Quantise({kMost, -kMost, kMost / 448});
  EXPECT_EQ(out.values[0], 0x7e);
  EXPECT_EQ(out.values[1], 0xfe);
  EXPECT_EQ(out.values[2], 0x38);
  EXPECT_TRUE(std::isfinite(out.scales[0]));
}

// Half a step of the type, relative to the block's largest value.
TEST_P(QuantiseTest, ThereAndBack) {
  std::mt19937_64 random(3);
  std::vector<float> row(1000), back(1000);
  for (float& value : row) value = std::normal_distribution<float>()(random);
  const Quantised out = Quantise(row);
  DequantiseRow(*ops_, back.data(), ElementType::kFloat32, out.values.data(), out.scales.data(), 1000);
  for (int64_t i = 0; i < 1000; ++i) {
    const float step = std::max(std::abs(row[i]) / 16, out.scales[i / 128] * std::exp2(-10.0f));
    EXPECT_NEAR(back[i], row[i], step * 1.001f);
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, QuantiseTest,
                         ::testing::Values(InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512));

}  // namespace
}  // namespace jax_fabric::kernels
