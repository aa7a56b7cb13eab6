#ifndef JAX_FABRIC_MOE_CUDA_CUDA_STATUS_H_
#define JAX_FABRIC_MOE_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "csrc/base/status.h"

namespace jax_fabric::moe {

// CUDA's answer with the name of what was asked for.
inline Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  // It would be told again to whoever asks next.
  (void)cudaGetLastError();
  return MakeError(error == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted : ErrorCode::kInternal,
                   "{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_CUDA_STATUS_H_
