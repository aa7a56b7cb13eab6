// The custom call jf_empty: takes any operands, leaves its results as they are and ends at once. Benchmarks compare
// calls that do something with it.
#ifndef JAX_FABRIC_FFI_EMPTY_CALL_H_
#define JAX_FABRIC_FFI_EMPTY_CALL_H_

#include "csrc/ffi/target.h"

namespace jax_fabric::ffi_layer {

Target EmptyCallTarget();

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_EMPTY_CALL_H_
