#ifndef JAX_FABRIC_FFI_HOST_FORK_GENERATION_H_
#define JAX_FABRIC_FFI_HOST_FORK_GENERATION_H_

#include <cstdint>

namespace jax_fabric::ffi_layer {

// Another one in a forked child than in its parent. A load, where getpid is a system call.
uint64_t ForkGeneration();

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_FORK_GENERATION_H_
