// float8_e4m3fn the slow way, for tests: by searching all numbers of the type.
#ifndef JAX_FABRIC_KERNELS_CPU_FLOAT8_REFERENCE_H_
#define JAX_FABRIC_KERNELS_CPU_FLOAT8_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace jax_fabric::kernels::testing {

// Numbers of float8_e4m3fn that are not negative, by their bits, from the definition of the type.
inline std::vector<double> Float8Numbers() {
  std::vector<double> numbers;
  for (int bits = 0; bits < 0x7f; ++bits) {
    const int exponent = bits / 8;
    const double fraction = (bits % 8) / 8.0;
    numbers.push_back(exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7));
  }
  return numbers;
}

// Bits of the nearest number, the even one of two; of NaN past 464, where the next number would be nearer.
inline uint32_t NearestFloat8(double value) {
  static const std::vector<double> numbers = Float8Numbers();
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::abs(value);
  if (!(magnitude <= 464)) return sign | 0x7f;
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), magnitude);
  if (above == numbers.end()) return sign | 0x7e;
  const auto high = static_cast<uint32_t>(above - numbers.begin());
  if (high == 0) return sign;
  const double to_low = magnitude - numbers[high - 1];
  const double to_high = *above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && high % 2 == 0);
  return sign | (up ? high : high - 1);
}

}  // namespace jax_fabric::kernels::testing

#endif  // JAX_FABRIC_KERNELS_CPU_FLOAT8_REFERENCE_H_
