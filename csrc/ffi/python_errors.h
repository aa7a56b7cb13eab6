// Errors as values become Python exceptions here, and nowhere else.
#ifndef JAX_FABRIC_FFI_PYTHON_ERRORS_H_
#define JAX_FABRIC_FFI_PYTHON_ERRORS_H_

#include <nanobind/nanobind.h>

#include <utility>

#include "csrc/base/status.h"

namespace jax_fabric::ffi_layer {

// An instance of what jax_fabric.errors has for the code. With the GIL.
nanobind::object ToException(const Error& error);

[[noreturn]] void Raise(const Error& error);

template <typename T>
T ValueOrRaise(Result<T> result) {
  if (!result) Raise(result.error());
  return std::move(result).value();
}

inline void RaiseIfError(const Status& status) {
  if (!status) Raise(status.error());
}

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_PYTHON_ERRORS_H_
