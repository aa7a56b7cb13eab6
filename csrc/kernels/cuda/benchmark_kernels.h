// What a benchmark of kernels needs besides them.
#ifndef JAX_FABRIC_KERNELS_CUDA_BENCHMARK_KERNELS_H_
#define JAX_FABRIC_KERNELS_CUDA_BENCHMARK_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/cuda/moe_kernels.h"

namespace jax_fabric::kernels::cuda {

// As fast as a copy of so many bytes (a multiple of 16) gets.
cudaError_t Copy(void* to, const void* from, int64_t bytes, const LaunchOptions& options);

// Leaves nothing in the caches but `memory`, of so many bytes.
cudaError_t FlushCaches(void* memory, int64_t bytes, cudaStream_t stream);

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_BENCHMARK_KERNELS_H_
