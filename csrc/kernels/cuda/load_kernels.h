// Each file of kernels loads its own.
#ifndef JAX_FABRIC_KERNELS_CUDA_LOAD_KERNELS_H_
#define JAX_FABRIC_KERNELS_CUDA_LOAD_KERNELS_H_

#include <cuda_runtime_api.h>

namespace jax_fabric::kernels::cuda {

// Loads kernels, up to the first that cannot be.
template <typename... Kernels>
cudaError_t Load(Kernels*... kernels) {
  for (const void* kernel : {reinterpret_cast<const void*>(kernels)...}) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LoadDispatchSend();
cudaError_t LoadDispatchReceive();
cudaError_t LoadFusedDispatchSend();
cudaError_t LoadFusedDispatchReceive();
cudaError_t LoadCombine();
cudaError_t LoadRedispatch();
cudaError_t LoadSendRows();
cudaError_t LoadExchange();

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_LOAD_KERNELS_H_
