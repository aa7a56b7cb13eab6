#include "csrc/kernels/cpu/quantise.h"

#include <algorithm>
#include <cstdint>

namespace jax_fabric::kernels {
namespace {

constexpr float kLargest = 448.0f;
constexpr float kLeastMagnitude = 1e-4f;

// to = scale * from, for one block.
void ScaleBlock(const RowOps& ops, void* to, ElementType to_type, const void* from, ElementType from_type, float scale,
                int64_t n) {
  Terms terms;
  terms.rows[0] = from;
  terms.scales[0] = scale;
  terms.count = 1;
  terms.scaled = true;
  ops.sum[static_cast<int>(from_type)][static_cast<int>(to_type)](to, terms, n, /*streamed=*/false);
}

}  // namespace

void QuantiseRow(const RowOps& ops, void* to, float* scales, const void* from, ElementType from_type, int64_t hidden) {
  constexpr ElementType kType = ElementType::kFloat8E4m3fn;
  for (int64_t begin = 0; begin < hidden; begin += kScaleBlock, ++scales) {
    const int64_t n = std::min(hidden - begin, kScaleBlock);
    const void* block = ElementAt(from, from_type, begin);
    const float largest = std::max(ops.largest[static_cast<int>(from_type)](block, n), kLeastMagnitude);
    // Not divided by 448: compilers make a product of that, and the oracle in JAX must have the same bits.
    *scales = largest * (1.0f / kLargest);
    ScaleBlock(ops, ElementAt(to, kType, begin), kType, block, from_type, kLargest / largest, n);
  }
}

void DequantiseRow(const RowOps& ops, void* to, ElementType to_type, const void* from, const float* scales,
                   int64_t hidden) {
  constexpr ElementType kType = ElementType::kFloat8E4m3fn;
  for (int64_t begin = 0; begin < hidden; begin += kScaleBlock, ++scales) {
    ScaleBlock(ops, ElementAt(to, to_type, begin), to_type, ElementAt(from, kType, begin), kType, *scales,
               std::min(hidden - begin, kScaleBlock));
  }
}

}  // namespace jax_fabric::kernels
