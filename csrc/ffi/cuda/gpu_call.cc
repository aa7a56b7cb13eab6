#include "csrc/ffi/cuda/gpu_call.h"

#include "csrc/ffi/context_table.h"
#include "csrc/moe/cuda/cuda_context.h"

namespace jax_fabric::ffi_layer {
namespace {

using kernels::cuda::FillRange;

ffi::Error ToFfi(const Status& status) { return status ? ffi::Error::Success() : ToXlaError(status.error()); }

uint32_t NotANumber(ffi::DataType type) {
  switch (type) {
    case ffi::F32:
      return 0x7fc00000;
    case ffi::BF16:
      return 0x7fc07fc0;
    case ffi::F16:
      return 0x7e007e00;
    case ffi::F8E4M3FN:
      return 0x7f7f7f7f;
    default:
      return 0;
  }
}

}  // namespace

// A program that is being recorded must be recorded as before, also when the fabric was closed: XLA would not forget
// the half that it has. Its channels give no results then.
ffi::Error WithChannel(const GpuCall& call, const ChannelBody& body) {
  LocalRank* rank = ContextTable::Get().Find(call.context, call.device);
  if (rank == nullptr) return ToXlaError(NoSuchRank(call.context, call.device));
  if (rank->platform() != moe::Platform::kCuda) {
    return ToXlaError(
        Error{ErrorCode::kInvalidArgument, "a computation on a GPU calls an expert-parallel context on the CPU"});
  }
  const Visit visit(rank);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  (void)cudaStreamIsCapturing(call.stream, &status);
  if (visit.context() == nullptr && status == cudaStreamCaptureStatusNone) {
    return ToXlaError(Error{ErrorCode::kFailedPrecondition, "the fabric of this expert-parallel context was closed"});
  }
  const auto& context = static_cast<const moe::CudaContext&>(*rank->last());
  const moe::CudaChannel* channel = context.channel(static_cast<int32_t>(call.channel));
  if (channel == nullptr) {
    return ToXlaError(Error{ErrorCode::kInvalidArgument, fmt::format("channel={}: the context has channels 0 to {}",
                                                                     call.channel, context.config().channels - 1)});
  }
  return ToFfi(body(context.config(), *channel));
}

FillRange FillOf(ffi::Result<ffi::AnyBuffer>& result) {
  return {result->untyped_data(), static_cast<int64_t>(result->size_bytes()), NotANumber(result->element_type())};
}
FillRange FillOf(ffi::ResultBuffer<ffi::F32>& result) {
  return {result->untyped_data(), static_cast<int64_t>(result->size_bytes()), NotANumber(ffi::F32)};
}
FillRange FillOf(ffi::ResultBuffer<ffi::S32>& result, int32_t value) {
  return {result->untyped_data(), static_cast<int64_t>(result->size_bytes()), static_cast<uint32_t>(value)};
}

}  // namespace jax_fabric::ffi_layer
