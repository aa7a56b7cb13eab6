// Starting threads without exceptions, with names that a debugger shows.
#ifndef JAX_FABRIC_BASE_THREAD_H_
#define JAX_FABRIC_BASE_THREAD_H_

#include <functional>
#include <string>
#include <thread>

#include "csrc/base/status.h"

namespace jax_fabric {

// Signals are blocked in it: they belong to the program's own threads (Ctrl-C to Python's main thread).
Result<std::thread> StartThread(const std::string& name, std::function<void()> run);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_THREAD_H_
