// The custom call jf_bump: value u32[2] (lower half first), anything -> the same, in the same place. Stores the value
// into a watcher's word of the device that it runs on, after all that its operands are made of.
#ifndef JAX_FABRIC_FFI_BUMP_CALL_H_
#define JAX_FABRIC_FFI_BUMP_CALL_H_

#include <cstdint>

#include "csrc/ffi/target.h"
#include "csrc/ffi/watcher_table.h"
#include "csrc/ffi/xla_ffi.h"

namespace jax_fabric::ffi_layer {

using BumpValue = xla::ffi::BufferR1<xla::ffi::U32>;

// The word, if the call is as its Python function makes it: results lie where operands do.
Result<uint64_t*> WordToBump(int64_t watcher, int32_t device, const BumpValue& value,
                             const xla::ffi::RemainingArgs& operands, const xla::ffi::RemainingRets& results);

// On the CPU.
Target BumpTarget();

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_BUMP_CALL_H_
