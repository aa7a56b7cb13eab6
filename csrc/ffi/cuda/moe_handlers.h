#ifndef JAX_FABRIC_FFI_CUDA_MOE_HANDLERS_H_
#define JAX_FABRIC_FFI_CUDA_MOE_HANDLERS_H_

#include <vector>

#include "csrc/ffi/target.h"

namespace jax_fabric::ffi_layer {

// The same calls as those for the CPU (csrc/ffi/moe_handlers.h), as launches: XLA may record and replay them.
std::vector<Target> CudaMoeTargets();
// Those of them that are halves of exchanges.
std::vector<Target> StartedCudaMoeTargets();

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_CUDA_MOE_HANDLERS_H_
