// How work is dealt out to blocks.
#ifndef JAX_FABRIC_KERNELS_CUDA_GRID_H_
#define JAX_FABRIC_KERNELS_CUDA_GRID_H_

#include <algorithm>
#include <cstdint>

namespace jax_fabric::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;  // of a warp
// Of kernels in which a warp takes a row.
inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / kWarp;

// Blocks for each of `messages` messages of at most `items` rows or parts of rows, a warp for one at a time: as many as
// the device runs at once, if `blocks` fit on a multiprocessor.
inline uint32_t BlocksOfMessage(int64_t messages, int64_t items, int32_t multiprocessors, int32_t blocks = 4) {
  const int64_t device = int64_t{blocks} * multiprocessors / messages;
  const int64_t needed = (items + kRowWarps - 1) / kRowWarps;
  return static_cast<uint32_t>(std::max<int64_t>(1, std::min(device, needed)));
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_GRID_H_
