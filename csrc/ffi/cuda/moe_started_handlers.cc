// Exchanges in two halves, as csrc/ffi/moe_started_handlers.cc has them on the CPU. The first half's ticket is the
// exchange's number, by which the second one finds out on the device whether it is its own.
#include <array>

#include "csrc/ffi/cuda/gpu_call.h"
#include "csrc/ffi/cuda/moe_handlers.h"

namespace jax_fabric::ffi_layer {
namespace {

using kernels::ElementType;
using kernels::ExchangeKind;
using kernels::cuda::ExchangePart;

ffi::Error DispatchStart(cudaStream_t stream, int32_t device, RankOperand rank, ffi::AnyBuffer x, S32 experts,
                         F32 weights, F32 scales, S32, ffi::ResultBuffer<ffi::S32> ticket,
                         ffi::ResultBuffer<ffi::S32> index, ffi::ResultBuffer<ffi::S32> slot,
                         ffi::ResultBuffer<ffi::S32> token_ends, int64_t context, int64_t channel, int64_t call_index) {
  const GpuCall call{stream, device, context, channel, call_index};
  const std::array outputs = {FillOf(index, -1), FillOf(slot, -1), FillOf(token_ends, 0)};
  return WithChannel(call, [&](const moe::MoeConfig& config, const moe::CudaChannel& found) -> Status {
    JF_ASSIGN_OR_RETURN(const ElementType type, ElementTypeOf(x.element_type()));
    auto send = DispatchSendArgsOf(config, type, x, experts, weights, scales, SendRouteOf(index, slot, token_ends));
    send.absent = nullptr;  // in host memory; the channel knows it on the device
    return found.Dispatch({.stream = stream,
                           .kind = ExchangeKind::kDispatch,
                           .signature = call.Key() ^ DispatchSignature(send.t_rows, 1, type),
                           .axis_rank = rank.typed_data(),
                           .part = ExchangePart::kBegin,
                           .token = ticket->typed_data(),
                           .outputs = outputs},
                          send, {});
  });
}

// x and its route are for rounds after the first one, and of size 0 where there is none. What comes after them
// is there to be computed first.
ffi::Error DispatchDone(cudaStream_t stream, int32_t device, RankOperand rank, S32 ticket, ffi::AnyBuffer x,
                        F32 x_scales, S32 index, S32 slot, S32 token_ends, ffi::RemainingArgs,
                        ffi::Result<ffi::AnyBuffer> tokens, ffi::ResultBuffer<ffi::F32> row_weights,
                        ffi::ResultBuffer<ffi::S32> group_sizes, ffi::ResultBuffer<ffi::S32> dropped,
                        ffi::ResultBuffer<ffi::S32> token, ffi::ResultBuffer<ffi::S32> positions,
                        ffi::ResultBuffer<ffi::S32> rows, ffi::ResultBuffer<ffi::F32> scales, int64_t context,
                        int64_t channel, int64_t call_index, bool zero_padding) {
  const GpuCall call{stream, device, context, channel, call_index};
  const std::array outputs = {FillOf(tokens),        FillOf(row_weights), FillOf(group_sizes, 0), FillOf(dropped, 0),
                              FillOf(positions, -1), FillOf(rows, -1),    FillOf(scales)};
  return WithChannel(call, [&](const moe::MoeConfig& config, const moe::CudaChannel& found) -> Status {
    JF_ASSIGN_OR_RETURN(const ElementType type, ElementTypeOf(tokens->element_type()));
    JF_ASSIGN_OR_RETURN(const ElementType x_type, ElementTypeOf(x.element_type()));
    const DispatchResults results{tokens, row_weights, group_sizes, dropped, positions, rows, scales};
    const auto send = LaterDispatchSendArgsOf(config, x_type, x, x_scales, SendRouteOf(index, slot, token_ends));
    const auto receive = DispatchReceiveArgsOf(config, type, config.layout.shape.max_tokens, results, zero_padding);
    return found.Dispatch({.stream = stream,
                           .kind = ExchangeKind::kDispatch,
                           .signature = call.Key() ^ DispatchSignature(send.t_rows, 1, x_type),
                           .axis_rank = rank.typed_data(),
                           .part = ExchangePart::kFinish,
                           .ticket = ticket.typed_data(),
                           .token = token->typed_data(),
                           .outputs = outputs},
                          send, receive);
  });
}

ffi::Error CombineStart(cudaStream_t stream, int32_t device, RankOperand rank, ffi::AnyBuffer y, F32 weights,
                        F32 scalars, S32 positions, S32 rows, S32, ffi::ResultBuffer<ffi::S32> ticket, int64_t context,
                        int64_t channel, int64_t call_index, int64_t tokens) {
  const GpuCall call{stream, device, context, channel, call_index};
  return WithChannel(call, [&](const moe::MoeConfig& config, const moe::CudaChannel& found) -> Status {
    JF_ASSIGN_OR_RETURN(const ElementType type, ElementTypeOf(y.element_type()));
    const auto send = CombineSendArgsOf(config, ExchangeKind::kCombine, type, y, weights, scalars, positions, rows);
    return found.Combine({.stream = stream,
                          .kind = ExchangeKind::kCombine,
                          .signature = call.Key() ^ CombineSignature(tokens, type, send.row_weights != nullptr, false),
                          .axis_rank = rank.typed_data(),
                          .part = ExchangePart::kBegin,
                          .token = ticket->typed_data(),
                          .outputs = {}},
                         send, {});
  });
}

// y, weights, positions and rows are for rounds after the first one, as x is in DispatchDone.
ffi::Error CombineDone(cudaStream_t stream, int32_t device, RankOperand rank, S32 ticket, S32 index, S32 slot,
                       S32 token_ends, ffi::AnyBuffer y, F32 weights, S32 positions, S32 rows, ffi::RemainingArgs,
                       ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::S32> token, int64_t context,
                       int64_t channel, int64_t call_index) {
  const GpuCall call{stream, device, context, channel, call_index};
  const std::array outputs = {FillOf(out)};
  return WithChannel(call, [&](const moe::MoeConfig& config, const moe::CudaChannel& found) -> Status {
    JF_ASSIGN_OR_RETURN(const ElementType type, ElementTypeOf(out->element_type()));
    const F32& no_scalars = weights;  // combine sends none
    const auto send = CombineSendArgsOf(config, ExchangeKind::kCombine, type, y, weights, no_scalars, positions, rows);
    const auto receive = CombineReceiveArgsOf(config, type, SendRouteOf(index, slot, token_ends), out);
    return found.Combine(
        {.stream = stream,
         .kind = ExchangeKind::kCombine,
         .signature = call.Key() ^ CombineSignature(receive.t_rows, type, send.row_weights != nullptr, false),
         .axis_rank = rank.typed_data(),
         .part = ExchangePart::kFinish,
         .ticket = ticket.typed_data(),
         .token = token->typed_data(),
         .outputs = outputs},
        send, receive);
  });
}

XLA_FFI_DEFINE_HANDLER(kDispatchStart, DispatchStart, GpuBindingOf(DispatchStart), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kDispatchDone, DispatchDone, GpuBindingOf(DispatchDone, "zero_padding"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCombineStart, CombineStart, GpuBindingOf(CombineStart, "tokens"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCombineDone, CombineDone, GpuBindingOf(CombineDone), {ffi::Traits::kCmdBufferCompatible});

}  // namespace

std::vector<Target> StartedCudaMoeTargets() {
  return {
      {"jf_moe_dispatch_start", nullptr, kDispatchStart},
      {"jf_moe_dispatch_done", nullptr, kDispatchDone},
      {"jf_moe_combine_start", nullptr, kCombineStart},
      {"jf_moe_combine_done", nullptr, kCombineDone},
  };
}

}  // namespace jax_fabric::ffi_layer
