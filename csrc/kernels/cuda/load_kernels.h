// Each file of kernels loads its own.
#ifndef JAX_FABRIC_KERNELS_CUDA_LOAD_KERNELS_H_
#define JAX_FABRIC_KERNELS_CUDA_LOAD_KERNELS_H_

#include <cuda_runtime_api.h>

namespace jax_fabric::kernels::cuda {

cudaError_t LoadDispatchSend();
cudaError_t LoadDispatchReceive();
cudaError_t LoadFusedDispatchSend();
cudaError_t LoadFusedDispatchReceive();
cudaError_t LoadCombine();
cudaError_t LoadRedispatch();
cudaError_t LoadSendRows();

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_LOAD_KERNELS_H_
