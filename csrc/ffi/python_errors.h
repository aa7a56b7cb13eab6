// Errors as values become Python exceptions here, and nowhere else.
#ifndef JAX_FABRIC_FFI_PYTHON_ERRORS_H_
#define JAX_FABRIC_FFI_PYTHON_ERRORS_H_

#include <nanobind/nanobind.h>

#include "csrc/base/status.h"

namespace jax_fabric::ffi_layer {

// ValueError for wrong arguments, TimeoutError for deadlines, RuntimeError for the rest.
[[noreturn]] inline void Raise(const Error& error) {
  PyObject* type = PyExc_RuntimeError;
  if (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kOutOfRange) type = PyExc_ValueError;
  if (error.code == ErrorCode::kDeadlineExceeded) type = PyExc_TimeoutError;
  PyErr_SetString(type, error.message.c_str());
  throw nanobind::python_error();
}

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
