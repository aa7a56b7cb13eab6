// Every instruction set must give the same bits as the scalar conversions of float_types.h.
#include "csrc/kernels/cpu/row_ops.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/cpu/float_types.h"
#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels {
namespace {

constexpr int64_t kSizes[] = {0, 1, 7, 8, 15, 16, 31, 32, 33, 100, 511, 512};

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

bool SameFloat(float a, float b) { return (std::isnan(a) && std::isnan(b)) || FloatBits(a) == FloatBits(b); }

class RowOpsTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    ops_ = RowOpsFor(GetParam());
    if (ops_ == nullptr) GTEST_SKIP() << "not on this machine";
  }

  template <typename Codec>
  void TestType(ElementType type) {
    for (int64_t n : kSizes) {
      for (int64_t shift = 0; shift < 3; ++shift) {
        TestLoads<Codec>(static_cast<int>(type), n, shift);
        TestStore<Codec>(static_cast<int>(type), n, shift);
      }
    }
  }

  template <typename Codec>
  void TestLoads(int type, int64_t n, int64_t shift) {
    using Storage = typename Codec::Storage;
    std::vector<Storage> from(n + shift);
    for (auto& value : from) value = Codec::Encode(AnyFloat(random_));
    const Storage* source = from.data() + shift;
    std::vector<float> before(n + 1);
    for (float& value : before) value = AnyFloat(random_);
    const float scale = AnyFloat(random_);
    std::vector<float> load = before, add = before, load_scaled = before, add_scaled = before;
    ops_->load[type](load.data(), source, n);
    ops_->add[type](add.data(), source, n);
    ops_->load_scaled[type](load_scaled.data(), source, scale, n);
    ops_->add_scaled[type](add_scaled.data(), source, scale, n);
    for (int64_t i = 0; i < n; ++i) {
      const float value = Codec::Decode(source[i]);
      ASSERT_EQ(FloatBits(load[i]), FloatBits(value)) << i;  // NaN payloads, too
      ASSERT_TRUE(SameFloat(add[i], before[i] + value)) << i;
      const float product = scale * value;
      ASSERT_TRUE(SameFloat(load_scaled[i], product)) << i;
      ASSERT_TRUE(SameFloat(add_scaled[i], before[i] + product)) << i;
    }
    for (const auto* to : {&load, &add, &load_scaled, &add_scaled}) {
      ASSERT_EQ(FloatBits((*to)[n]), FloatBits(before[n])) << "written past the end";
    }
  }

  template <typename Codec>
  void TestStore(int type, int64_t n, int64_t shift) {
    using Storage = typename Codec::Storage;
    std::vector<float> from(n);
    for (float& value : from) value = AnyFloat(random_);
    std::vector<Storage> to(shift + n + 1, Storage{1});
    ops_->store[type](to.data() + shift, from.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const Storage expected = Codec::Encode(from[i]);
      ASSERT_EQ(std::memcmp(&to[shift + i], &expected, sizeof(Storage)), 0) << i << " " << from[i];
    }
    ASSERT_EQ(to[shift + n], Storage{1}) << "written past the end";
  }

  const RowOps* ops_ = nullptr;
  std::mt19937_64 random_{1};
};

TEST_P(RowOpsTest, Float32) { TestType<Float32Codec>(ElementType::kFloat32); }
TEST_P(RowOpsTest, Bfloat16) { TestType<Bfloat16Codec>(ElementType::kBfloat16); }
TEST_P(RowOpsTest, Float16) { TestType<Float16Codec>(ElementType::kFloat16); }
TEST_P(RowOpsTest, Float8E4m3fn) { TestType<Float8E4m3fnCodec>(ElementType::kFloat8E4m3fn); }

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
