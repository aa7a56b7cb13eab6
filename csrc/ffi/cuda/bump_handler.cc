#include "csrc/ffi/cuda/bump_handler.h"

#include <cuda_runtime_api.h>

#include "csrc/ffi/async_call.h"
#include "csrc/ffi/bump_call.h"
#include "csrc/kernels/cuda/exchange.h"
#include "csrc/moe/cuda/mapped_memory.h"

namespace jax_fabric::ffi_layer {
namespace {

namespace ffi = xla::ffi;

ffi::Error Bump(cudaStream_t stream, int32_t device, BumpValue value, ffi::RemainingArgs operands,
                ffi::RemainingRets results, int64_t watcher, int64_t) {
  const auto word = WordToBump(watcher, device, value, operands, results);
  if (!word) return ToXlaError(word.error());
  const auto* words = reinterpret_cast<const uint64_t*>(value.typed_data());
  const cudaError_t error = kernels::cuda::Bump(reinterpret_cast<kernels::WatcherWord*>(*word), words, stream);
  if (error == cudaSuccess) return ffi::Error::Success();
  return ToXlaError(Error{ErrorCode::kInternal, fmt::format("bump: launch: {}", cudaGetErrorString(error))});
}

XLA_FFI_DEFINE_HANDLER(kBump, Bump,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<BumpValue>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("watcher")
                           .Attr<int64_t>("call_index"),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

Target CudaBumpTarget() { return {"jf_bump", nullptr, kBump}; }

Result<std::shared_ptr<uint64_t>> AllocateMappedWord(int device) {
  JF_ASSIGN_OR_RETURN(moe::MappedMemory memory, moe::MappedMemory::Allocate(device, sizeof(kernels::WatcherWord)));
  // Leaked: the context of the device may be gone when the process ends. Its address is the same on the device.
  auto* leaked = new moe::MappedMemory(std::move(memory));
  return std::shared_ptr<uint64_t>(reinterpret_cast<uint64_t*>(leaked->device()), [](uint64_t*) {});
}

}  // namespace jax_fabric::ffi_layer
