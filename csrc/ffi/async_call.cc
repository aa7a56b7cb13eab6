#include "csrc/ffi/async_call.h"

namespace jax_fabric::ffi_layer {

xla::ffi::Error ToXlaError(const Error& error) {
  // ErrorCode has the numbers of XLA_FFI_Error_Code.
  return xla::ffi::Error(static_cast<xla::ffi::ErrorCode>(error.code), error.message);
}

AsyncCall::AsyncCall(Executor* completion) : completion_(completion) {
  task_.context = this;
  task_.run = [](void* context) { static_cast<AsyncCall*>(context)->Fulfil(); };
}

void AsyncCall::Complete(const Error* error) {
  if (error != nullptr) error_ = *error;
  // acq_rel: whoever comes second sees what the first one wrote, and fulfils.
  if ((state_.fetch_or(kCompleted, std::memory_order_acq_rel) & kReleased) != 0) completion_->Submit(&task_);
}

void AsyncCall::Release() {
  if ((state_.fetch_or(kReleased, std::memory_order_acq_rel) & kCompleted) != 0) Fulfil();
}

void AsyncCall::Fulfil() {
  // The promise is moved out: what runs inside may outlive this object's turn.
  xla::ffi::Promise promise = std::move(promise_);
  const std::optional<Error> error = std::move(error_);
  delete this;
  if (error) {
    promise.SetError(ToXlaError(*error));
  } else {
    promise.SetAvailable();
  }
}

}  // namespace jax_fabric::ffi_layer
