#include "csrc/ffi/host/python_callback.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace jax_fabric::ffi_layer {
namespace {

// A thread counts itself, then looks at `shut`; Shut sets it, then looks at the count. Sequentially consistent: either
// the thread sees that it must not enter, or Shut sees that it is inside.
std::atomic<int> inside{0};
std::atomic<bool> shut{false};

}  // namespace

PythonScope::PythonScope() {
  inside.fetch_add(1, std::memory_order_seq_cst);
  if (shut.load(std::memory_order_seq_cst)) {
    inside.fetch_sub(1, std::memory_order_seq_cst);
    return;
  }
  // Not nanobind's guard, which is noexcept: an interpreter that exits ends a thread that waits here by unwinding it.
  state_ = PyGILState_Ensure();
  entered_ = true;
}

PythonScope::~PythonScope() {
  if (!entered_) return;
  PyGILState_Release(state_);
  inside.fetch_sub(1, std::memory_order_seq_cst);
}

bool PythonScope::Shut(Deadline deadline) {
  shut.store(true, std::memory_order_seq_cst);
  while (inside.load(std::memory_order_seq_cst) > 0) {
    if (deadline.Passed(SteadyClock::Get())) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

bool PythonScope::IsShut() { return shut.load(std::memory_order_seq_cst); }

void DropReference(PyObject* object) {
  if (object == nullptr) return;
  const PythonScope python;
  if (python) Py_DECREF(object);
}

void PythonCallback::Clear() {
  const PythonScope python;
  if (python) Py_XDECREF(std::exchange(function_, nullptr));
}

void PythonCallback::Run(PyObject* arguments) {
  // It may clear itself while it runs.
  PyObject* function = function_;
  Py_INCREF(function);
  PyObject* result = arguments == nullptr ? nullptr : PyObject_Call(function, arguments, nullptr);
  if (result == nullptr) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
  Py_XDECREF(arguments);
  Py_DECREF(function);
}

}  // namespace jax_fabric::ffi_layer
