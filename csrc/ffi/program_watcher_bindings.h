#ifndef JAX_FABRIC_FFI_PROGRAM_WATCHER_BINDINGS_H_
#define JAX_FABRIC_FFI_PROGRAM_WATCHER_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace jax_fabric::ffi_layer {

// Watchers that programs raise; they go with an engine of the host API.
void RegisterProgramWatcherBindings(nanobind::module_& m);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_PROGRAM_WATCHER_BINDINGS_H_
