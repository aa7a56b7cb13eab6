// Programmatic dependent launch: a kernel is set up while the one before it on the stream still runs, which takes most
// of the way from kernel to kernel. Nothing else changes: the later one waits for the earlier one's end before it looks
// at anything that the earlier one writes. Chips before sm_90 launch as always.
#ifndef JAX_FABRIC_KERNELS_CUDA_DEPENDENT_LAUNCH_CUH_
#define JAX_FABRIC_KERNELS_CUDA_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace jax_fabric::kernels::cuda {

// In a kernel that LaunchDependent launches, before all that the kernel before it has a part in: until that one is
// through, and what it stored is there. What came before that one is there from the beginning, if it was launched as
// always.
__device__ __forceinline__ void AwaitKernelBefore() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// By all blocks: the next kernel may be set up now. It takes room on the device from then on, so no block that still
// has to wait for another rank may say it: that rank's kernels may need the room.
__device__ __forceinline__ void LetNextKernelBegin() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// As kernel<<<blocks, threads, shared_bytes, stream>>>(args...); `early`: if the kernel before it lets it begin.
template <typename... Parameters, typename... Args>
cudaError_t LaunchDependent(bool early, void (*kernel)(Parameters...), dim3 blocks, uint32_t threads,
                            size_t shared_bytes, cudaStream_t stream, const Args&... args) {
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early && major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_DEPENDENT_LAUNCH_CUH_
