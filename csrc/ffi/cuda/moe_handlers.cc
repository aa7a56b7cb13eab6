#include "csrc/ffi/cuda/moe_handlers.h"

#include <array>

#include "csrc/ffi/cuda/gpu_call.h"

namespace jax_fabric::ffi_layer {
namespace {

using kernels::ElementType;
using kernels::ExchangeKind;

ffi::Error Dispatch(cudaStream_t stream, int32_t device, RankOperand rank, ffi::AnyBuffer x, S32 experts, F32 weights,
                    F32 scales, S32, ffi::Result<ffi::AnyBuffer> tokens, ffi::ResultBuffer<ffi::F32> row_weights,
                    ffi::ResultBuffer<ffi::S32> group_sizes, ffi::ResultBuffer<ffi::S32> dropped,
                    ffi::ResultBuffer<ffi::S32> token, ffi::ResultBuffer<ffi::S32> index,
                    ffi::ResultBuffer<ffi::S32> slot, ffi::ResultBuffer<ffi::S32> token_ends,
                    ffi::ResultBuffer<ffi::S32> positions, ffi::ResultBuffer<ffi::S32> rows,
                    ffi::ResultBuffer<ffi::F32> row_scales, int64_t context, int64_t channel, int64_t call_index,
                    bool zero_padding) {
  const GpuCall call{stream, device, context, channel, call_index};
  const std::array outputs = {FillOf(tokens),    FillOf(row_weights), FillOf(group_sizes, 0), FillOf(dropped, 0),
                              FillOf(index, -1), FillOf(slot, -1),    FillOf(token_ends, 0),  FillOf(positions, -1),
                              FillOf(rows, -1),  FillOf(row_scales)};
  return WithChannel(call, [&](const moe::MoeConfig& config, const moe::CudaChannel& found) -> Status {
    JF_ASSIGN_OR_RETURN(const ElementType type, ElementTypeOf(x.element_type()));
    JF_ASSIGN_OR_RETURN(const ElementType tokens_type, ElementTypeOf(tokens->element_type()));
    auto send = DispatchSendArgsOf(config, type, x, experts, weights, scales, SendRouteOf(index, slot, token_ends));
    send.absent = nullptr;  // in host memory; the channel knows it on the device
    const DispatchResults results{tokens, row_weights, group_sizes, dropped, positions, rows, row_scales};
    const auto receive = DispatchReceiveArgsOf(config, tokens_type, send.t_rows, results, zero_padding);
    return found.Dispatch({.stream = stream,
                           .kind = ExchangeKind::kDispatch,
                           .signature = call.Key() ^ DispatchSignature(send.t_rows, receive.elements, type),
                           .axis_rank = rank.typed_data(),
                           .token = token->typed_data(),
                           .outputs = outputs},
                          send, receive);
  });
}

ffi::Error Combine(cudaStream_t stream, int32_t device, RankOperand rank, ffi::AnyBuffer y, F32 weights, F32 scalars,
                   S32 index, S32 slot, S32 token_ends, S32 positions, S32 rows, S32, ffi::Result<ffi::AnyBuffer> out,
                   ffi::ResultBuffer<ffi::F32> out_scalars, ffi::ResultBuffer<ffi::S32> token, int64_t context,
                   int64_t channel, int64_t call_index, bool back) {
  const GpuCall call{stream, device, context, channel, call_index};
  const std::array outputs = {FillOf(out), FillOf(out_scalars)};
  return WithChannel(call, [&](const moe::MoeConfig& config, const moe::CudaChannel& found) -> Status {
    JF_ASSIGN_OR_RETURN(const ElementType type, ElementTypeOf(y.element_type()));
    JF_ASSIGN_OR_RETURN(const ElementType out_type, ElementTypeOf(out->element_type()));
    const ExchangeKind kind = back ? ExchangeKind::kDispatchBack : ExchangeKind::kCombine;
    const auto send = CombineSendArgsOf(config, kind, type, y, weights, scalars, positions, rows);
    auto receive = CombineReceiveArgsOf(config, out_type, SendRouteOf(index, slot, token_ends), out);
    receive.layout = send.layout;
    receive.kind = kind;
    receive.scalars = back ? out_scalars->typed_data() : nullptr;
    return found.Combine(
        {.stream = stream,
         .kind = kind,
         .signature = call.Key() ^ CombineSignature(receive.t_rows, type, send.row_weights != nullptr, back),
         .axis_rank = rank.typed_data(),
         .token = token->typed_data(),
         .outputs = outputs},
        send, receive);
  });
}

ffi::Error Redispatch(cudaStream_t stream, int32_t device, RankOperand rank, ffi::AnyBuffer x, F32 weights,
                      ffi::AnyBuffer y, S32 index, S32 slot, S32 token_ends, S32 positions, S32 rows, S32,
                      ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::F32> dots,
                      ffi::ResultBuffer<ffi::S32> token, int64_t context, int64_t channel, int64_t call_index) {
  const GpuCall call{stream, device, context, channel, call_index};
  const std::array outputs = {FillOf(out), FillOf(dots)};
  return WithChannel(call, [&](const moe::MoeConfig& config, const moe::CudaChannel& found) -> Status {
    JF_ASSIGN_OR_RETURN(const ElementType type, ElementTypeOf(x.element_type()));
    JF_ASSIGN_OR_RETURN(const ElementType y_type, ElementTypeOf(y.element_type()));
    const auto [send, receive] =
        RedispatchArgsOf(config, type, x, weights, y_type, y, SendRouteOf(index, slot, token_ends),
                         {Route(positions), Route(rows)}, out, dots);
    return found.Redispatch({.stream = stream,
                             .kind = ExchangeKind::kRedispatch,
                             .signature = call.Key() ^ RedispatchSignature(send.t_rows, type, receive.y != nullptr),
                             .axis_rank = rank.typed_data(),
                             .token = token->typed_data(),
                             .outputs = outputs},
                            send, receive);
  });
}

// Launches may be recorded: nothing else happens in a call.
XLA_FFI_DEFINE_HANDLER(kDispatch, Dispatch, GpuBindingOf(Dispatch, "zero_padding"),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCombine, Combine, GpuBindingOf(Combine, "back"), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kRedispatch, Redispatch, GpuBindingOf(Redispatch), {ffi::Traits::kCmdBufferCompatible});

}  // namespace

std::vector<Target> CudaMoeTargets() {
  std::vector<Target> targets = StartedCudaMoeTargets();
  targets.insert(targets.end(), {{"jf_moe_dispatch", nullptr, kDispatch},
                                 {"jf_moe_combine", nullptr, kCombine},
                                 {"jf_moe_redispatch", nullptr, kRedispatch}});
  return targets;
}

}  // namespace jax_fabric::ffi_layer
