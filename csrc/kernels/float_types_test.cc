#include "csrc/kernels/float_types.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "csrc/kernels/cpu/float8_reference.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A number of a format with `exponent_bits` and `mantissa_bits`, computed the slow way. No NaN or infinity.
double Value(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const bool negative = (bits >> (exponent_bits + mantissa_bits) & 1) != 0;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return negative ? -magnitude : magnitude;
}

TEST(Bfloat16Test, AllValuesRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Bfloat16Codec::Decode(static_cast<uint16_t>(bits));
    if ((bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(Bfloat16Codec::Encode(value), bits | 0x40);
      continue;
    }
    EXPECT_EQ(FloatBits(value), bits << 16);
    EXPECT_EQ(Bfloat16Codec::Encode(value), bits);
  }
}

TEST(Float16Test, AllValuesRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Float16Codec::Decode(static_cast<uint16_t>(bits));
    const bool special = (bits & 0x7c00) == 0x7c00;
    if (special && (bits & 0x3ff) != 0) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(Float16Codec::Encode(value), bits | 0x200);
      continue;
    }
    if (special) {
      EXPECT_EQ(value, (bits & 0x8000) != 0 ? -kInfinity : kInfinity);
    } else {
      EXPECT_EQ(value, Value(bits, 5, 10));
      EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    }
    EXPECT_EQ(Float16Codec::Encode(value), bits);
  }
}

TEST(Float8E4m3fnTest, AllValuesRoundTrip) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const float value = Float8E4m3fnCodec::Decode(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, Value(bits, 4, 3));
    }
    EXPECT_EQ(std::signbit(value), (bits & 0x80) != 0);
    EXPECT_EQ(Float8E4m3fnCodec::Encode(value), bits);
  }
}

// Between every two neighbours: what lies below the middle, on it (to the even one) and above it.
template <typename Codec>
void TestRounding(uint32_t last_finite) {
  for (uint32_t bits = 0; bits < last_finite; ++bits) {
    using Storage = typename Codec::Storage;
    const float low = Codec::Decode(static_cast<Storage>(bits));
    const float high = Codec::Decode(static_cast<Storage>(bits + 1));
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    const uint32_t sign = 1u << (8 * sizeof(Storage) - 1);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(Codec::Encode(middle), even) << middle;
    ASSERT_EQ(Codec::Encode(std::nextafter(middle, 0.0f)), bits) << middle;
    ASSERT_EQ(Codec::Encode(std::nextafter(middle, kInfinity)), bits + 1) << middle;
    ASSERT_EQ(Codec::Encode(-middle), sign | even) << middle;
    ASSERT_EQ(Codec::Encode(std::nextafter(-middle, -kInfinity)), sign | (bits + 1)) << middle;
  }
}

TEST(Bfloat16Test, RoundsToNearestEven) { TestRounding<Bfloat16Codec>(0x7f7f); }
TEST(Float16Test, RoundsToNearestEven) { TestRounding<Float16Codec>(0x7bff); }
TEST(Float8E4m3fnTest, RoundsToNearestEven) { TestRounding<Float8E4m3fnCodec>(0x7e); }

// The vectors are what XLA's convert and ml_dtypes give (compared once with both on six million values).
TEST(Bfloat16Test, KnownVectors) {
  EXPECT_EQ(Bfloat16Codec::Encode(1.0f), 0x3f80);
  EXPECT_EQ(Bfloat16Codec::Encode(3.14159265f), 0x4049);
  EXPECT_EQ(Bfloat16Codec::Encode(-0.0f), 0x8000);
  EXPECT_EQ(Bfloat16Codec::Encode(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(Bfloat16Codec::Encode(BitsFloat(0x00000001)), 0);
  EXPECT_EQ(Bfloat16Codec::Encode(BitsFloat(0x00018001)), 2);  // subnormal
  EXPECT_EQ(Bfloat16Codec::Encode(BitsFloat(0x7f800001)), 0x7fc0);
  EXPECT_EQ(Bfloat16Codec::Encode(BitsFloat(0xff800001)), 0xffc0);
}

TEST(Float16Test, KnownVectors) {
  EXPECT_EQ(Float16Codec::Encode(1.0f), 0x3c00);
  EXPECT_EQ(Float16Codec::Encode(3.14159265f), 0x4248);
  EXPECT_EQ(Float16Codec::Encode(-0.0f), 0x8000);
  EXPECT_EQ(Float16Codec::Encode(65504.0f), 0x7bff);
  EXPECT_EQ(Float16Codec::Encode(65519.996f), 0x7bff);
  EXPECT_EQ(Float16Codec::Encode(65520.0f), 0x7c00);
  EXPECT_EQ(Float16Codec::Encode(1e30f), 0x7c00);
  EXPECT_EQ(Float16Codec::Encode(-kInfinity), 0xfc00);
  EXPECT_EQ(Float16Codec::Encode(std::ldexp(1.0f, -24)), 1);
  EXPECT_EQ(Float16Codec::Encode(std::ldexp(1.0f, -25)), 0);
  EXPECT_EQ(Float16Codec::Encode(std::nextafter(std::ldexp(1.0f, -25), 1.0f)), 1);
  EXPECT_EQ(Float16Codec::Encode(BitsFloat(0x00000001)), 0);
  EXPECT_EQ(Float16Codec::Encode(BitsFloat(0x7f800001)), 0x7e00);
  EXPECT_EQ(Float16Codec::Encode(BitsFloat(0xffc00000)), 0xfe00);
}

TEST(Float8E4m3fnTest, KnownVectors) {
  EXPECT_EQ(Float8E4m3fnCodec::Encode(1.0f), 0x38);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(-0.0f), 0x80);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(448.0f), 0x7e);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(464.0f), 0x7e);  // the tie goes to the even one
  EXPECT_EQ(Float8E4m3fnCodec::Encode(std::nextafter(464.0f, 1000.0f)), 0x7f);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(480.0f), 0x7f);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(-500.0f), 0xff);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(std::numeric_limits<float>::max()), 0x7f);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(kInfinity), 0x7f);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(-kInfinity), 0xff);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(std::ldexp(1.0f, -9)), 1);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(std::ldexp(1.0f, -10)), 0);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(std::nextafter(std::ldexp(1.0f, -10), 1.0f)), 1);
  EXPECT_EQ(Float8E4m3fnCodec::Encode(BitsFloat(0x00000001)), 0);
}

template <typename Codec>
void TestAllToFloat8() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Codec::Decode(static_cast<uint16_t>(bits));
    ASSERT_EQ(Float8E4m3fnCodec::Encode(value), testing::NearestFloat8(value)) << value;
  }
}

TEST(Float8E4m3fnTest, OfEveryFloat16) { TestAllToFloat8<Float16Codec>(); }
TEST(Float8E4m3fnTest, OfEveryBfloat16) { TestAllToFloat8<Bfloat16Codec>(); }

}  // namespace
}  // namespace jax_fabric::kernels
