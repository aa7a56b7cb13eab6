// The host API's part of the extension module: conversions only. jax_fabric/_core.pyi has the signatures,
// jax_fabric/engine and jax_fabric/memory say what they mean.
//
// Buffers come as address and length. Python finds them with NumPy's __array_interface__: the buffer protocol is not in
// the limited API of Python 3.10, and DLPack cannot export a read-only array.
#ifndef JAX_FABRIC_FFI_HOST_BINDINGS_H_
#define JAX_FABRIC_FFI_HOST_BINDINGS_H_

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>

#include "csrc/base/clock.h"

namespace jax_fabric::ffi_layer {

void RegisterHostBindings(nanobind::module_& m);
void RegisterGroupBindings(nanobind::module_& m);
void RegisterBenchmarkBindings(nanobind::module_& m);
void RegisterSimulationBindings(nanobind::module_& m);

inline Deadline AfterTimeout(int64_t timeout_us, const Clock& clock = SteadyClock::Get()) {
  return Deadline::After(clock, timeout_us);
}

// wait(deadline) until it returns true or the time is over, without the GIL. In slices: between them Python
// handles signals, so that Ctrl-C ends a wait.
template <typename Wait>
bool WaitInterruptibly(int64_t timeout_us, const Clock& clock, Wait wait) {
  const Deadline deadline = AfterTimeout(timeout_us, clock);
  constexpr int64_t kSliceUs = 50'000;
  while (true) {
    bool ready = false;
    {
      const nanobind::gil_scoped_release released;
      ready = wait(Deadline{std::min(deadline.at_ns, AfterTimeout(kSliceUs, clock).at_ns)});
    }
    if (ready) return true;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (deadline.Passed(clock)) return false;
  }
}

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_BINDINGS_H_
