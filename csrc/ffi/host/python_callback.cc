#include "csrc/ffi/host/python_callback.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "csrc/ffi/host/fork_generation.h"

namespace jax_fabric::ffi_layer {
namespace {

// A thread counts itself, then looks at `shut`; Shut sets it, then looks at the count. Sequentially consistent: either
// the thread sees that it must not enter, or Shut sees that it is inside.
std::atomic<int> inside{0};
// A forked child starts with its parent's count, and without the threads.
std::atomic<uint64_t> inside_generation{0};
std::atomic<bool> shut{false};

}  // namespace

PythonScope::PythonScope() : fork_generation_(ForkGeneration()) {
  if (inside_generation.exchange(fork_generation_, std::memory_order_relaxed) != fork_generation_) {
    inside.store(0, std::memory_order_relaxed);  // the child's only thread, until it has entered
  }
  inside.fetch_add(1, std::memory_order_seq_cst);
  if (shut.load(std::memory_order_seq_cst)) {
    inside.fetch_sub(1, std::memory_order_seq_cst);
    return;
  }
  // Not nanobind's guard, which is noexcept: that would make the unwinding fatal.
  state_ = PyGILState_Ensure();
  entered_ = true;
}

void PythonScope::Leave() {
  if (!entered_) return;
  entered_ = false;
  PyGILState_Release(state_);
  if (fork_generation_ == ForkGeneration()) inside.fetch_sub(1, std::memory_order_seq_cst);
}

bool PythonScope::Shut(Deadline deadline) {
  shut.store(true, std::memory_order_seq_cst);
  if (inside_generation.load(std::memory_order_relaxed) != ForkGeneration()) return true;
  while (inside.load(std::memory_order_seq_cst) > 0) {
    if (deadline.Passed(SteadyClock::Get())) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

bool PythonScope::IsShut() { return shut.load(std::memory_order_seq_cst); }

void DropReference(PyObject* object) {
  if (object == nullptr) return;
  PythonScope python;
  if (python) Py_DECREF(object);
  python.Leave();
}

void PythonCallback::Clear() {
  PythonScope python;
  if (python) Py_XDECREF(std::exchange(function_, nullptr));
  python.Leave();
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
