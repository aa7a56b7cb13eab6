// Dispatch in one launch, where there are few tokens: decoding. Every block finds out by itself what it needs to know
// of all tokens, which is faster than launches that hand it on, as long as it is little. The same results and messages.
#ifndef JAX_FABRIC_KERNELS_CUDA_FUSED_DISPATCH_H_
#define JAX_FABRIC_KERNELS_CUDA_FUSED_DISPATCH_H_

#include <cuda_runtime_api.h>

#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/moe_kernels.h"

namespace jax_fabric::kernels::cuda {

bool CanFuseDispatchSend(const DispatchSendArgs& args);
cudaError_t FusedDispatchSend(const DispatchSendArgs& args, const LaunchOptions& options);

bool CanFuseDispatchReceive(const DispatchReceiveArgs& args);
cudaError_t FusedDispatchReceive(const DispatchReceiveArgs& args, const LaunchOptions& options);

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_FUSED_DISPATCH_H_
