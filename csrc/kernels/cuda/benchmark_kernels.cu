#include <cstdint>
#include <cuda/atomic>

#include "csrc/kernels/cuda/benchmark_kernels.h"
#include "csrc/kernels/cuda/dependent_launch.cuh"
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

using SystemWord = ::cuda::atomic_ref<int64_t, ::cuda::thread_scope_system>;

__device__ void Post(const PingPong& words, int64_t number) {
  // As Tell; the host acquires it.
  ::cuda::atomic_thread_fence(::cuda::memory_order_release, ::cuda::thread_scope_system);
  SystemWord(*words.posted).store(number, ::cuda::memory_order_relaxed);
}
__device__ void Await(const PingPong& words, int64_t number) {
  // Acquires what the host has released.
  while (SystemWord(*words.done).load(::cuda::memory_order_acquire) < number) {
  }
}

__global__ void PostKernel(PingPong words) {
  LetNextKernelBegin();
  Post(words, *words.number + 1);
}
__global__ void AwaitKernel(PingPong words) {
  AwaitKernelBefore();
  Await(words, *words.number + 1);
  LetNextKernelBegin();
  *words.number += 1;
}
__global__ void EmptyKernel() { AwaitKernelBefore(); }
__global__ void RoundTripsKernel(PingPong words, int64_t count) {
  const int64_t end = *words.number + count;
#pragma unroll 1
  for (int64_t number = *words.number + 1; number <= end; ++number) {
    Post(words, number);
    Await(words, number);
  }
  *words.number = end;
}

}  // namespace

cudaError_t LaunchPost(const PingPong& words, cudaStream_t stream) {
  PostKernel<<<1, 1, 0, stream>>>(words);
  return cudaGetLastError();
}

cudaError_t LaunchAwait(const PingPong& words, cudaStream_t stream) {
  return LaunchDependent(true, AwaitKernel, 1, 1, 0, stream, words);
}

cudaError_t LaunchRoundTrip(const PingPong& words, cudaStream_t stream) {
  cudaError_t error = LaunchPost(words, stream);
  if (error == cudaSuccess) error = LaunchAwait(words, stream);
  return error == cudaSuccess ? LaunchDependent(true, EmptyKernel, 1, 1, 0, stream) : error;
}

cudaError_t LaunchRoundTrips(const PingPong& words, int64_t count, cudaStream_t stream) {
  RoundTripsKernel<<<1, 1, 0, stream>>>(words, count);
  return cudaGetLastError();
}

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
