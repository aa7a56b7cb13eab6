#include "csrc/ffi/empty_call.h"

namespace jax_fabric::ffi_layer {
namespace {

namespace ffi = xla::ffi;

ffi::Error Empty(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) { return ffi::Error::Success(); }

XLA_FFI_DEFINE_HANDLER(kEmpty, Empty, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

}  // namespace

Target EmptyCallTarget() { return {"jf_empty", nullptr, kEmpty}; }

}  // namespace jax_fabric::ffi_layer
