// The promise of one XLA FFI call, kept between the handler and whoever finishes the call.
//
// Fulfilling a promise runs the rest of the user's program on the calling thread, so a worker never does it: a call
// that finishes after its handler has returned is fulfilled by its device's completion executor. One that finishes
// inside of the handler is fulfilled there, before XLA has the future: nothing can run inside.
#ifndef JAX_FABRIC_FFI_ASYNC_CALL_H_
#define JAX_FABRIC_FFI_ASYNC_CALL_H_

#include <atomic>
#include <optional>

#include "csrc/base/executor.h"
#include "csrc/base/status.h"
#include "csrc/ffi/xla_ffi.h"

namespace jax_fabric::ffi_layer {

xla::ffi::Error ToXlaError(const Error& error);

class AsyncCall {
 public:
  explicit AsyncCall(Executor* completion);
  virtual ~AsyncCall() = default;

  // Takes ownership of `call`, submits it with `submit(call)`, and gives the future to return to XLA. The call deletes
  // itself after it has been fulfilled.
  template <typename Call, typename Submit>
  static xla::ffi::Future Run(Call* call, Submit submit) {
    // XLA requires that the future is made before the promise is used.
    xla::ffi::Future future(call->promise_);
    submit(call);
    call->Release();
    return future;
  }

 protected:
  // Exactly once, from any thread, possibly before Run has returned. `error` is null on success.
  void Complete(const Error* error);

 private:
  enum : int { kCompleted = 1, kReleased = 2 };

  void Release();
  void Fulfil();

  Executor* const completion_;
  xla::ffi::Promise promise_;
  std::optional<Error> error_;
  Task task_;
  std::atomic<int> state_{0};
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_ASYNC_CALL_H_
