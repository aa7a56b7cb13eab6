// How work is dealt out to blocks.
#ifndef JAX_FABRIC_KERNELS_CUDA_GRID_H_
#define JAX_FABRIC_KERNELS_CUDA_GRID_H_

#include <algorithm>
#include <cstdint>

namespace jax_fabric::kernels::cuda {

inline constexpr int kWarp = 32;
// Of kernels in which a warp takes a row.
inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / kWarp;

// Blocks for each of `ranks` messages of at most `rows` rows, a warp for a row at a time: as many as fill the device.
inline uint32_t BlocksOfMessage(int64_t ranks, int64_t rows, int32_t multiprocessors) {
  constexpr int64_t kBlocksOfMultiprocessor = 4;
  const int64_t device = (kBlocksOfMultiprocessor * multiprocessors + ranks - 1) / ranks;
  const int64_t needed = (rows + kRowWarps - 1) / kRowWarps;
  return static_cast<uint32_t>(std::max<int64_t>(1, std::min(device, needed)));
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_GRID_H_
