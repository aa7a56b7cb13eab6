// Sums over the threads of a block, and searches.
#ifndef JAX_FABRIC_KERNELS_CUDA_BLOCK_SCAN_CUH_
#define JAX_FABRIC_KERNELS_CUDA_BLOCK_SCAN_CUH_

#include <cstdint>

namespace jax_fabric::kernels::cuda {

// Two numbers that are summed together.
struct Pair {
  int32_t a = 0;
  int32_t b = 0;
};
__device__ __forceinline__ Pair operator+(const Pair& x, const Pair& y) { return {x.a + y.a, x.b + y.b}; }

struct PairScan {
  Pair before;  // of the threads before this one
  Pair total;   // of all
};

// By all lanes of a warp.
__device__ __forceinline__ PairScan ScanWarp(Pair value) {
  const int lane = threadIdx.x % 32;
  Pair sum = value;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const Pair other = {__shfl_up_sync(0xffffffffu, sum.a, i), __shfl_up_sync(0xffffffffu, sum.b, i)};
    if (lane >= i) sum = other + sum;
  }
  return {{sum.a - value.a, sum.b - value.b},
          {__shfl_sync(0xffffffffu, sum.a, 31), __shfl_sync(0xffffffffu, sum.b, 31)}};
}

// By all threads of a block of 32 warps, whose lanes have the same value each: over the warps.
__device__ __forceinline__ PairScan ScanWarps(Pair value) {
  __shared__ Pair warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  PairScan scan = ScanWarp(warps[lane]);
  scan.before = {__shfl_sync(0xffffffffu, scan.before.a, warp), __shfl_sync(0xffffffffu, scan.before.b, warp)};
  __syncthreads();  // before the next call writes `warps`
  return scan;
}

// By all threads of the block, kThreads of them.
template <int kThreads>
__device__ PairScan ScanBlock(Pair value) {
  constexpr int kWarps = kThreads / 32;
  __shared__ Pair warps[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Pair sum = value;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const Pair other = {__shfl_up_sync(0xffffffffu, sum.a, i), __shfl_up_sync(0xffffffffu, sum.b, i)};
    if (lane >= i) sum = other + sum;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  PairScan scan;
  scan.before = {sum.a - value.a, sum.b - value.b};
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) scan.before = scan.before + warps[i];
    scan.total = scan.total + warps[i];
  }
  __syncthreads();  // before the next call writes `warps`
  return scan;
}

// How many of the rising values [0, size) are below `bound`.
__device__ __forceinline__ int32_t LowerBound(const int32_t* values, int32_t size, int32_t bound) {
  int32_t begin = 0, end = size;
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (values[middle] < bound) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_BLOCK_SCAN_CUH_
