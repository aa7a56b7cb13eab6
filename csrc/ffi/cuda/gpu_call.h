// One call on a GPU: which channel it means, and what its results are where there are none.
#ifndef JAX_FABRIC_FFI_CUDA_GPU_CALL_H_
#define JAX_FABRIC_FFI_CUDA_GPU_CALL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "csrc/ffi/call_binding.h"
#include "csrc/ffi/moe_arguments.h"
#include "csrc/kernels/cuda/exchange.h"
#include "csrc/moe/cuda/cuda_channel.h"

namespace jax_fabric::ffi_layer {

// What every call has of its own.
struct GpuCall {
  cudaStream_t stream;
  int32_t device;
  int64_t context;
  int64_t channel;
  int64_t call_index;

  // Calls of a program are different calls, also where shapes are equal.
  uint64_t Key() const { return Signature({context, channel, call_index}); }
};

using ChannelBody = std::function<Status(const moe::MoeConfig& config, const moe::CudaChannel& channel)>;

// body(configuration, channel) with the context kept open.
ffi::Error WithChannel(const GpuCall& call, const ChannelBody& body);

// Results where there are none. Floats are NaN, so that nobody takes them for results.
kernels::cuda::FillRange FillOf(ffi::Result<ffi::AnyBuffer>& result);
kernels::cuda::FillRange FillOf(ffi::ResultBuffer<ffi::F32>& result);
// Integers: routes lead nowhere with -1, and sizes are 0.
kernels::cuda::FillRange FillOf(ffi::ResultBuffer<ffi::S32>& result, int32_t value);

// As BindingOf, of what a call on a GPU takes first.
template <typename... Parameters, typename... Names>
auto GpuBindingOf(ffi::Error (*)(cudaStream_t, int32_t, RankOperand, Parameters...), const Names&... own_attributes) {
  const std::vector<std::string> names = AttributeNames<Parameters...>(own_attributes...);
  return binding::Add<Parameters...>(
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Ctx<ffi::DeviceOrdinal>().template Arg<RankOperand>(),
      names.data());
}

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_CUDA_GPU_CALL_H_
