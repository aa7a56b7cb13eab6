// Users' Python functions, as the engine's threads call them.
#ifndef JAX_FABRIC_FFI_HOST_PYTHON_CALLBACK_H_
#define JAX_FABRIC_FFI_HOST_PYTHON_CALLBACK_H_

#include <nanobind/nanobind.h>

#include <cstdint>

#include "csrc/base/clock.h"

namespace jax_fabric::ffi_layer {

// The GIL, on any thread. Not entered from the interpreter's exit on: then nothing of Python may be touched.
//
// Leave() ends it, not a destructor: an interpreter that exits ends a thread that waits for the GIL, inside of a
// callback for example, by unwinding its stack, and must not be called on the way.
class PythonScope {
 public:
  PythonScope();
  void Leave();
  PythonScope(const PythonScope&) = delete;
  PythonScope& operator=(const PythonScope&) = delete;
  explicit operator bool() const { return entered_; }

  // For the interpreter's exit, without the GIL: no thread enters any more. Waits for those inside; false: some still
  // are at the deadline.
  static bool Shut(Deadline deadline);
  static bool IsShut();

 private:
  bool entered_ = false;
  uint64_t fork_generation_ = 0;
  PyGILState_STATE state_{};
};

// Drops a reference on any thread; at the interpreter's exit it is left alone.
void DropReference(PyObject* object);

// What it raises goes to sys.unraisablehook.
class PythonCallback {
 public:
  // With the GIL.
  explicit PythonCallback(const nanobind::object& function) : function_(function.inc_ref().ptr()) {}
  ~PythonCallback() { DropReference(function_); }
  PythonCallback(const PythonCallback&) = delete;
  PythonCallback& operator=(const PythonCallback&) = delete;

  // `make_arguments`, with the GIL, gives a new tuple, or null with a Python error set.
  template <typename MakeArguments>
  void operator()(MakeArguments make_arguments) {
    PythonScope python;
    if (!python) return;
    if (function_ != nullptr) Run(make_arguments());
    python.Leave();
  }

  // It is not called any more. Breaks cycles of functions that refer to what calls them. Any thread.
  void Clear();

 private:
  void Run(PyObject* arguments);

  PyObject* function_;  // under the GIL
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_PYTHON_CALLBACK_H_
