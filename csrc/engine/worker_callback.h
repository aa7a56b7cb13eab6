#ifndef JAX_FABRIC_ENGINE_WORKER_CALLBACK_H_
#define JAX_FABRIC_ENGINE_WORKER_CALLBACK_H_

#include "csrc/base/status.h"

namespace jax_fabric {

// Called on the worker thread exactly once. `error` is null on success and valid only during the call.
struct WorkerCallback {
  void (*function)(void* context, const Error* error) = nullptr;
  void* context = nullptr;

  void operator()(const Error* error) const {
    if (function != nullptr) function(context, error);
  }
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_WORKER_CALLBACK_H_
