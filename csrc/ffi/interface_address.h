#ifndef JAX_FABRIC_FFI_INTERFACE_ADDRESS_H_
#define JAX_FABRIC_FFI_INTERFACE_ADDRESS_H_

#include <string>

#include "csrc/base/status.h"

namespace jax_fabric::ffi_layer {

// An address of this machine's network interface, "10.0.0.5": of IPv4, else of IPv6. kNotFound lists the interfaces.
Result<std::string> InterfaceAddress(const std::string& interface);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_INTERFACE_ADDRESS_H_
