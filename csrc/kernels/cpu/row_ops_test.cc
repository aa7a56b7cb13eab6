// Every instruction set must give the same bits as the scalar conversions of float_types.h.
#include "csrc/kernels/cpu/row_ops.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/float_types.h"
#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels {
namespace {

constexpr int64_t kSizes[] = {0, 1, 7, 8, 31, 32, 33, 100, 192};
constexpr int64_t kMostElements = 192;

// Any bits: every kind of NaN, infinities, subnormals and numbers near the limits of the small types.
float AnyFloat(std::mt19937_64& random) {
  const auto bits = static_cast<uint32_t>(random());
  switch (random() % 4) {
    case 0:
      return BitsFloat(bits);
    case 1:
      return BitsFloat((bits & 0x807fffff) | static_cast<uint32_t>(100 + random() % 48) << 23);
    case 2:
      return BitsFloat((bits & 0x80ffffff) | 0x7f000000);
    default:
      return std::normal_distribution<float>()(random);
  }
}

class RowOpsTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    ops_ = RowOpsFor(GetParam());
    if (ops_ == nullptr) GTEST_SKIP() << "not on this machine";
  }

  // Sums of rows of one type, to one type, in every form.
  template <typename From, typename To>
  void TestSums(ElementType from, ElementType to) {
    const RowOps::SumFn sum = ops_->sum[static_cast<int>(from)][static_cast<int>(to)];
    for (int64_t n : kSizes) {
      for (int64_t form = 0; form < 16; ++form) {
        const int64_t count = form / 4 == 3 ? Terms::kMost : form / 4;
        TestSum<From, To>(sum, n, count, /*scaled=*/form % 2 != 0, /*with_start=*/form % 4 >= 2 || count == 0);
      }
    }
  }

  template <typename From, typename To>
  void TestSum(RowOps::SumFn sum, int64_t n, int64_t count, bool scaled, bool with_start) {
    std::vector<std::vector<typename From::Storage>> rows(count);
    std::vector<float> start(n);
    for (float& value : start) value = AnyFloat(random_);
    Terms terms;
    terms.count = count;
    terms.scaled = scaled;
    terms.start = with_start ? start.data() : nullptr;
    for (int64_t t = 0; t < count; ++t) {
      const int64_t shift = static_cast<int64_t>(random_() % 3);
      rows[t].resize(shift + n);
      for (auto& value : rows[t]) value = From::Encode(AnyFloat(random_));
      terms.rows[t] = rows[t].data() + shift;
      terms.scales[t] = scaled ? AnyFloat(random_) : std::nanf("");
    }
    std::vector<float> expected(n);
    for (int64_t i = 0; i < n; ++i) {
      bool first = !with_start;
      expected[i] = start[i];
      for (int64_t t = 0; t < count; ++t) {
        const float value = From::Decode(static_cast<const typename From::Storage*>(terms.rows[t])[i]);
        const float term = scaled ? terms.scales[t] * value : value;
        expected[i] = first ? term : expected[i] + term;
        first = false;
      }
    }
    for (const bool streamed : {false, true}) CheckSum<To>(sum, terms, n, streamed, expected);
  }

  // Aligned and not.
  template <typename To>
  void CheckSum(RowOps::SumFn sum, const Terms& terms, int64_t n, bool streamed, const std::vector<float>& expected) {
    using Storage = typename To::Storage;
    alignas(64) Storage to[kMostElements + 2];
    for (int64_t shift = 0; shift < 2; ++shift) {
      std::fill(to, to + n + 2, Storage{1});
      sum(to + shift, terms, n, streamed);
      ops_->finish_streamed();
      for (int64_t i = 0; i < n; ++i) {
        const Storage actual = to[shift + i];
        const float value = To::Decode(actual);
        if (std::isnan(expected[i])) {
          // Which NaN a sum of several is, is not said.
          ASSERT_TRUE(std::isnan(value)) << i;
          continue;
        }
        const Storage encoded = To::Encode(expected[i]);
        ASSERT_EQ(std::memcmp(&actual, &encoded, sizeof(Storage)), 0) << value << " for " << expected[i] << " at " << i;
      }
      ASSERT_EQ(to[shift + n], Storage{1}) << "written past the end";
      if (shift == 0) continue;
      ASSERT_EQ(to[0], Storage{1}) << "written before the beginning";
    }
  }

  template <typename From>
  void TestFrom(ElementType from) {
    TestSums<From, Float32Codec>(from, ElementType::kFloat32);
    TestSums<From, Bfloat16Codec>(from, ElementType::kBfloat16);
    TestSums<From, Float16Codec>(from, ElementType::kFloat16);
    TestSums<From, Float8E4m3fnCodec>(from, ElementType::kFloat8E4m3fn);
  }

  // A conversion is the sum of one: NaN keeps sign and payload.
  template <typename Codec>
  void TestNan(ElementType type) {
    constexpr int64_t kCount = 100;
    std::vector<float> values(kCount), back(kCount);
    for (float& value : values) value = BitsFloat(static_cast<uint32_t>(random_()) | 0x7f800001u);
    std::vector<typename Codec::Storage> stored(kCount);
    ConvertRow(*ops_, stored.data(), type, values.data(), ElementType::kFloat32, kCount);
    ConvertRow(*ops_, back.data(), ElementType::kFloat32, stored.data(), type, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      const auto expected = Codec::Encode(values[i]);
      ASSERT_EQ(std::memcmp(&stored[i], &expected, sizeof(expected)), 0) << i;
      ASSERT_EQ(FloatBits(back[i]), FloatBits(Codec::Decode(expected))) << i;
    }
  }

  const RowOps* ops_ = nullptr;
  std::mt19937_64 random_{1};
};

TEST_P(RowOpsTest, SumsOfFloat32) { TestFrom<Float32Codec>(ElementType::kFloat32); }
TEST_P(RowOpsTest, SumsOfBfloat16) { TestFrom<Bfloat16Codec>(ElementType::kBfloat16); }
TEST_P(RowOpsTest, SumsOfFloat16) { TestFrom<Float16Codec>(ElementType::kFloat16); }
TEST_P(RowOpsTest, SumsOfFloat8E4m3fn) { TestFrom<Float8E4m3fnCodec>(ElementType::kFloat8E4m3fn); }

TEST_P(RowOpsTest, NanKeepsItsBits) {
  TestNan<Float32Codec>(ElementType::kFloat32);
  TestNan<Bfloat16Codec>(ElementType::kBfloat16);
  TestNan<Float16Codec>(ElementType::kFloat16);
  TestNan<Float8E4m3fnCodec>(ElementType::kFloat8E4m3fn);
}

TEST_P(RowOpsTest, CopyStreamed) {
  alignas(64) char to[600];
  char from[600];
  for (char& byte : from) byte = static_cast<char>(random_());
  for (int64_t bytes : {0, 1, 63, 64, 65, 128, 500}) {
    for (int64_t shift : {0, 1, 32}) {
      std::memset(to, 'x', sizeof(to));
      ops_->copy_streamed(to + shift, from + 3, bytes);
      ops_->finish_streamed();
      EXPECT_EQ(std::memcmp(to + shift, from + 3, bytes), 0);
      EXPECT_EQ(to[shift + bytes], 'x');
      EXPECT_TRUE(shift == 0 || to[shift - 1] == 'x');
    }
  }
}

TEST_P(RowOpsTest, DotHasAFixedShape) {
  for (int64_t n : kSizes) {
    for (int64_t shift = 0; shift < 3; ++shift) {
      std::vector<float> a(n + shift), b(n), lanes(kDotLanes + 2), expected(kDotLanes);
      for (float& value : a) value = std::normal_distribution<float>()(random_);
      for (float& value : b) value = std::normal_distribution<float>()(random_);
      for (int64_t i = 0; i < kDotLanes; ++i) lanes[i + 1] = expected[i] = static_cast<float>(i);
      ops_->dot(lanes.data() + 1, a.data() + shift, b.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        const float product = a[i + shift] * b[i];
        expected[i % kDotLanes] += product;
      }
      for (int64_t i = 0; i < kDotLanes; ++i) ASSERT_EQ(lanes[i + 1], expected[i]) << n << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, RowOpsTest,
                         ::testing::Values(InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512));

TEST(SumLanesTest, AddsAll) {
  float lanes[kDotLanes];
  for (int64_t i = 0; i < kDotLanes; ++i) lanes[i] = static_cast<float>(i);
  EXPECT_EQ(SumLanes(lanes), kDotLanes * (kDotLanes - 1) / 2);
}

// More terms than an array of them holds, over several chunks.
TEST(SumRowTest, ManyTerms) {
  constexpr int64_t kHidden = 2 * kChunk + 5;
  constexpr int64_t kTerms = 3 * Terms::kMost + 2;
  std::mt19937_64 random(2);
  std::vector<std::vector<float>> rows(kTerms, std::vector<float>(kHidden));
  std::vector<float> scales(kTerms), expected(kHidden), actual(kHidden);
  for (int64_t t = 0; t < kTerms; ++t) {
    scales[t] = std::normal_distribution<float>()(random);
    for (int64_t i = 0; i < kHidden; ++i) {
      rows[t][i] = std::normal_distribution<float>()(random);
      const float term = scales[t] * rows[t][i];
      expected[i] = t == 0 ? term : expected[i] + term;
    }
  }
  SumRow(GetRowOps(), actual.data(), ElementType::kFloat32, ElementType::kFloat32, kHidden, kTerms, /*scaled=*/true,
         /*streamed=*/false, [&](auto visit) {
           for (int64_t t = 0; t < kTerms; ++t) visit(rows[t].data(), scales[t]);
         });
  EXPECT_EQ(actual, expected);
}

TEST(ConvertRowTest, BetweenAllTypes) {
  constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16,
                                    ElementType::kFloat8E4m3fn};
  constexpr int64_t kHidden = kChunk + 100;
  for (ElementType from_type : kTypes) {
    for (ElementType to_type : kTypes) {
      std::vector<float> values(kHidden), back(kHidden);
      // Exact in all types.
      for (int64_t i = 0; i < kHidden; ++i) values[i] = static_cast<float>(i % 16) * (i % 2 == 0 ? 1.0f : -0.5f);
      std::vector<char> from(kHidden * 4), to(kHidden * 4 + 1, 'x');
      ConvertRow(GetRowOps(), from.data(), from_type, values.data(), ElementType::kFloat32, kHidden);
      ConvertRow(GetRowOps(), to.data(), to_type, from.data(), from_type, kHidden);
      ConvertRow(GetRowOps(), back.data(), ElementType::kFloat32, to.data(), to_type, kHidden);
      EXPECT_EQ(back, values);
      EXPECT_EQ(to[kHidden * ElementBytes(to_type)], 'x');
    }
  }
}

}  // namespace
}  // namespace jax_fabric::kernels
