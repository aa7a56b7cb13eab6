#include <cstdint>

#include "csrc/kernels/cuda/benchmark_kernels.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kPieces = 4;  // of 16 bytes, under way at once

__global__ void __launch_bounds__(kThreads)
    CopyKernel(uint4* to, const uint4* from, int64_t count, KernelTimes* times) {
  const KernelTimer timer(times);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; at + (kPieces - 1) * step < count; at += kPieces * step) {
    uint4 pieces[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i] = from[at + i * step];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) to[at + i * step] = pieces[i];
  }
  for (; at < count; at += step) to[at] = from[at];
}

__global__ void __launch_bounds__(kThreads) FlushKernel(uint4* memory, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < count; at += step) {
    uint4 word = memory[at];
    word.x += 1;
    memory[at] = word;
  }
}

}  // namespace

cudaError_t Copy(void* to, const void* from, int64_t bytes, const LaunchOptions& options) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  const int64_t blocks = (count + kThreads * kPieces - 1) / (kThreads * kPieces);
  const int64_t most = int64_t{4} * options.multiprocessors;
  CopyKernel<<<static_cast<uint32_t>(blocks < most ? blocks : most), kThreads, 0, options.stream>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), count, options.times);
  return cudaGetLastError();
}

cudaError_t FlushCaches(void* memory, int64_t bytes, cudaStream_t stream) {
  FlushKernel<<<512, kThreads, 0, stream>>>(static_cast<uint4*>(memory), bytes / static_cast<int64_t>(sizeof(uint4)));
  return cudaGetLastError();
}

}  // namespace jax_fabric::kernels::cuda
