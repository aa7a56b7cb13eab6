#ifndef JAX_FABRIC_FFI_CUDA_BUMP_HANDLER_H_
#define JAX_FABRIC_FFI_CUDA_BUMP_HANDLER_H_

#include <cstdint>
#include <memory>

#include "csrc/base/status.h"
#include "csrc/ffi/target.h"

namespace jax_fabric::ffi_layer {

// As BumpTarget (csrc/ffi/bump_call.h), as a launch: XLA may record and replay it.
Target CudaBumpTarget();

// A word of the host that kernels of the device can store into. Never freed.
Result<std::shared_ptr<uint64_t>> AllocateMappedWord(int device);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_CUDA_BUMP_HANDLER_H_
