// Rows in float8_e4m3fn with a float32 scale for each block of kScaleBlock elements.
//
// As DeepEP and DeepSeek-V3 quantise activations: the scale of a block is its largest magnitude, but at least 1e-4,
// divided by 448, the largest number of the type; each element is multiplied by 448 over that magnitude and rounded to
// nearest even. A block of zeros stays zeros. Only finite elements count for the largest magnitude: NaN and infinity
// become NaN, which is all that the type has for them, and leave the rest of their block as it is.
#ifndef JAX_FABRIC_KERNELS_CPU_QUANTISE_H_
#define JAX_FABRIC_KERNELS_CPU_QUANTISE_H_

#include <cstdint>

#include "csrc/kernels/cpu/row_ops.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {

void QuantiseRow(const RowOps& ops, void* to, float* scales, const void* from, ElementType from_type, int64_t hidden);

// Each element times its scale in float32, rounded to `to_type`.
void DequantiseRow(const RowOps& ops, void* to, ElementType to_type, const void* from, const float* scales,
                   int64_t hidden);

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_CPU_QUANTISE_H_
