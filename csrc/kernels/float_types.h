// bfloat16, float16 and float8_e4m3fn to and from float32, one value at a time.
//
// The same values as XLA's convert: round to nearest even, subnormals kept, NaN stays NaN with its sign (its upper
// payload bits too, made quiet, as the F16C instructions do; bfloat16 to float32 is exact). float16 and bfloat16
// overflow to infinity. float8_e4m3fn has no infinity and does not saturate: what rounds past 448, infinity included,
// becomes NaN.
//
// No branches and no tables, so that loops over these vectorise.
#ifndef JAX_FABRIC_KERNELS_FLOAT_TYPES_H_
#define JAX_FABRIC_KERNELS_FLOAT_TYPES_H_

#include <bit>
#include <cstdint>

// A call would end vectorisation, and would run code that was not compiled for the caller's instruction set.
#define JF_ALWAYS_INLINE inline __attribute__((always_inline))
// constexpr: device code may call them (--expt-relaxed-constexpr).
#define JF_CODEC constexpr __attribute__((always_inline))

namespace jax_fabric::kernels {

JF_CODEC uint32_t FloatBits(float value) { return std::bit_cast<uint32_t>(value); }
JF_CODEC float BitsFloat(uint32_t bits) { return std::bit_cast<float>(bits); }

// `Storage` is what an array of the type consists of.
struct Float32Codec {
  using Storage = float;
  static JF_CODEC float Decode(float value) { return value; }
  static JF_CODEC float Encode(float value) { return value; }
};

struct Bfloat16Codec {
  using Storage = uint16_t;
  static JF_CODEC float Decode(uint16_t value) { return BitsFloat(static_cast<uint32_t>(value) << 16); }
  static JF_CODEC uint16_t Encode(float value) {
    const uint32_t bits = FloatBits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return static_cast<uint16_t>(value != value ? quiet : rounded);
  }
};

struct Float16Codec {
  using Storage = uint16_t;
  static JF_CODEC float Decode(uint16_t value) {
    const uint32_t sign = (value & 0x8000u) << 16;
    const uint32_t magnitude = value & 0x7fffu;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    // 2^-14 + m * 2^-24 without the leading one. Both operands and the result are normal float32 numbers (or zero):
    // right even on the threads of XLA, which flush subnormals.
    const uint32_t subnormal = FloatBits(BitsFloat((113u << 23) | (magnitude << 13)) - BitsFloat(113u << 23));
    const uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x00400000u : 0u);
    const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
    return BitsFloat(sign | (magnitude >= 0x7c00u ? special : finite));
  }
  static JF_CODEC uint16_t Encode(float value) {
    const uint32_t bits = FloatBits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Rounds up into the exponent where the mantissa is full, at last into infinity.
    const uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    // The last place of 0.5 in float32 is the smallest float16: the addition rounds.
    const uint32_t subnormal = FloatBits(BitsFloat(magnitude) + 0.5f) - FloatBits(0.5f);
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
    const uint32_t bounded = magnitude >= (143u << 23) ? 0x7c00u : finite;
    return static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? nan : bounded));
  }
};

struct Float8E4m3fnCodec {
  using Storage = uint8_t;
  static JF_CODEC float Decode(uint8_t value) {
    const uint32_t sign = (value & 0x80u) << 24;
    const uint32_t magnitude = value & 0x7fu;
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t subnormal = FloatBits(BitsFloat((121u << 23) | (magnitude << 20)) - BitsFloat(121u << 23));
    const uint32_t finite = magnitude < 0x08u ? subnormal : normal;
    return BitsFloat(sign | (magnitude == 0x7fu ? 0x7ff00000u : finite));
  }
  static JF_CODEC uint8_t Encode(float value) {
    const uint32_t bits = FloatBits(value);
    const uint32_t sign = (bits >> 24) & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    // The last place of 2^14 in float32 is 2^-9, the smallest number of this type.
    const uint32_t subnormal = FloatBits(BitsFloat(magnitude) + 16384.0f) - FloatBits(16384.0f);
    const uint32_t finite = magnitude < (121u << 23) ? subnormal : normal;
    // 464 is halfway between 448 and what would be 480: it still rounds to 448, which is even.
    return static_cast<uint8_t>(sign | (magnitude > 0x43e80000u ? 0x7fu : finite));
  }
};

}  // namespace jax_fabric::kernels

#undef JF_CODEC

#endif  // JAX_FABRIC_KERNELS_FLOAT_TYPES_H_
