#ifndef JAX_FABRIC_FFI_SECRET_BINDINGS_H_
#define JAX_FABRIC_FFI_SECRET_BINDINGS_H_

#include <nanobind/nanobind.h>

#include <memory>

#include "csrc/base/fabric_key.h"
#include "csrc/base/secret.h"

namespace jax_fabric::ffi_layer {

// A secret as Python holds it: it has no attribute with the bytes, and cannot be pickled.
struct PythonSecret {
  Secret secret;
  std::shared_ptr<const FabricKey> key;
};

// Before whatever takes a secret.
void RegisterSecret(nanobind::module_& m);

// Null for None.
inline std::shared_ptr<const FabricKey> KeyOf(const PythonSecret* secret) {
  return secret == nullptr ? nullptr : secret->key;
}

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_SECRET_BINDINGS_H_
