// A custom call as XLA knows it.
#ifndef JAX_FABRIC_FFI_TARGET_H_
#define JAX_FABRIC_FFI_TARGET_H_

#include "csrc/ffi/xla_ffi.h"

namespace jax_fabric::ffi_layer {

struct Target {
  const char* name;
  XLA_FFI_Handler* instantiate;  // null for calls without state
  XLA_FFI_Handler* execute;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_TARGET_H_
