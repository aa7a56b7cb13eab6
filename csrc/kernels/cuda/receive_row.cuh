// A row of a message to a row of the results.
#ifndef JAX_FABRIC_KERNELS_CUDA_RECEIVE_ROW_CUH_
#define JAX_FABRIC_KERNELS_CUDA_RECEIVE_ROW_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/cuda/row_moves.cuh"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

// What becomes of a row that was received.
struct RowTarget {
  ElementType type;
  void* rows;
  float* scales;  // of quantised rows that stay so
};

// The scales of a row that stays quantised.
__device__ __forceinline__ void ReceiveScales(const RowFormat& format, const RowTarget& target, const char* from,
                                              int64_t position, int thread, int threads) {
  const auto* scales = At<float>(from, format.scales_offset);
#pragma unroll 1
  for (int64_t i = thread; i < format.scale_count; i += threads) {
    target.scales[position * format.scale_count + i] = scales[i];
  }
}

// In whatever form it travels.
template <int kCount>
__device__ __forceinline__ void ReceiveRow(const RowFormat& format, const RowTarget& target, const char* from,
                                           int64_t position, int thread, int threads) {
  char* to = static_cast<char*>(target.rows) + position * format.hidden * ElementBytes(target.type);
  if (!format.quantised || target.type == format.type) {
    ConvertRow<kCount>(to, target.type, from, format.type, static_cast<int32_t>(format.hidden), thread, threads);
  } else {
    DequantiseRow<kCount>(to, target.type, from, At<float>(from, format.scales_offset), format.hidden, thread, threads);
  }
  if (format.quantised && target.type == format.type) ReceiveScales(format, target, from, position, thread, threads);
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_RECEIVE_ROW_CUH_
