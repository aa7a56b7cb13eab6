// XLA's FFI header, whose warnings are not ours.
#ifndef JAX_FABRIC_FFI_XLA_FFI_H_
#define JAX_FABRIC_FFI_XLA_FFI_H_

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wreturn-type"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"
#pragma GCC diagnostic pop

#endif  // JAX_FABRIC_FFI_XLA_FFI_H_
