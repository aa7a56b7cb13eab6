// The model of MoE exchanges (csrc/moe/model) as part of the extension module.
#ifndef JAX_FABRIC_FFI_MODEL_BINDINGS_H_
#define JAX_FABRIC_FFI_MODEL_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace jax_fabric::ffi_layer {

void RegisterModelBindings(nanobind::module_& m);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_MODEL_BINDINGS_H_
