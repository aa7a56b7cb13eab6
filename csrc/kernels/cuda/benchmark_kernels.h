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

// What a device and a host need at least to tell each other something: kernels that do nothing else. In memory that the
// device can reach; the host answers each number in `posted` by the same one in `done`.
struct PingPong {
  int64_t* posted = nullptr;
  int64_t* done = nullptr;
  int64_t* number = nullptr;  // of the last round trip
};

// A kernel that posts the next number.
cudaError_t LaunchPost(const PingPong& words, cudaStream_t stream);
// A kernel that waits for the answer.
cudaError_t LaunchAwait(const PingPong& words, cudaStream_t stream);
// A round trip: that kernel, one that waits for the answer, and an empty one in the place of what unpacks.
cudaError_t LaunchRoundTrip(const PingPong& words, cudaStream_t stream);
// Many of them in one kernel.
cudaError_t LaunchRoundTrips(const PingPong& words, int64_t count, cudaStream_t stream);

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_BENCHMARK_KERNELS_H_
