// Rows that keep their type, part by part: a warp reads a part once and stores it wherever it goes.
#ifndef JAX_FABRIC_KERNELS_CUDA_ROW_PIECES_CUH_
#define JAX_FABRIC_KERNELS_CUDA_ROW_PIECES_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/message.cuh"

namespace jax_fabric::kernels::cuda {

// A part of a row in a warp's registers, whatever its type. Rows are a multiple of 16 bytes.
struct RowPieces {
  static constexpr int32_t kPieces = 4;  // of each lane, all on their way at once
  static constexpr int64_t kPartBytes = kPieces * kWarp * 16;

  static __host__ __device__ constexpr int32_t Parts(int64_t row_bytes) {
    return static_cast<int32_t>((row_bytes + kPartBytes - 1) / kPartBytes);
  }

  // Part `part` of a row of so many bytes.
  __device__ __forceinline__ void Load(const char* from, int32_t part, int64_t row_bytes, int32_t lane) {
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
      const int64_t at = part * kPartBytes + (i * kWarp + lane) * 16;
      if (at < row_bytes) pieces[i] = *At<uint4>(from, at);
    }
  }
  __device__ __forceinline__ void Store(char* to, int32_t part, int64_t row_bytes, int32_t lane) const {
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
      const int64_t at = part * kPartBytes + (i * kWarp + lane) * 16;
      if (at < row_bytes) *At<uint4>(to, at) = pieces[i];
    }
  }

  uint4 pieces[kPieces];
};

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_ROW_PIECES_CUH_
