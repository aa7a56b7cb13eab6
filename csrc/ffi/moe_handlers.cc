#include "csrc/ffi/moe_handlers.h"

#include "csrc/base/huge_pages.h"
#include "csrc/ffi/call_binding.h"
#include "csrc/ffi/moe_arguments.h"
#include "csrc/ffi/moe_call.h"

namespace jax_fabric::ffi_layer {
namespace {

using kernels::ExchangeKind;

ffi::Future Dispatch(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::AnyBuffer x,
                     S32 experts, F32 weights, F32 scales, S32, ffi::Result<ffi::AnyBuffer> tokens,
                     ffi::ResultBuffer<ffi::F32> row_weights, ffi::ResultBuffer<ffi::S32> group_sizes,
                     ffi::ResultBuffer<ffi::S32> dropped, ffi::ResultBuffer<ffi::S32> token,
                     ffi::ResultBuffer<ffi::S32> index, ffi::ResultBuffer<ffi::S32> slot,
                     ffi::ResultBuffer<ffi::S32> token_ends, ffi::ResultBuffer<ffi::S32> positions,
                     ffi::ResultBuffer<ffi::S32> rows, ffi::ResultBuffer<ffi::F32> row_scales, int64_t context,
                     int64_t channel, int64_t, bool zero_padding) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(x.element_type());
    if (!type) return Failed(type.error());
    const auto tokens_type = ElementTypeOf(tokens->element_type());
    if (!tokens_type) return Failed(tokens_type.error());
    const auto send = DispatchSendArgsOf(destination.config(), *type, x, experts, weights, scales,
                                         SendRouteOf(index, slot, token_ends));
    const DispatchResults results{tokens, row_weights, group_sizes, dropped, positions, rows, row_scales};
    const auto receive = DispatchReceiveArgsOf(destination.config(), *tokens_type, send.t_rows, results, zero_padding);
    AdviseHugePages(receive.tokens, tokens->size_bytes());
    return Exchange(call, destination, token, ExchangeKind::kDispatch,
                    DispatchSignature(send.t_rows, receive.elements, *type), kernels::DispatchSend, send,
                    kernels::DispatchReceive, receive);
  });
}

// Combine, and with `back` the gradient of dispatch.
ffi::Future Combine(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::AnyBuffer y,
                    F32 weights, F32 scalars, S32 index, S32 slot, S32 token_ends, S32 positions, S32 rows, S32,
                    ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::F32> out_scalars,
                    ffi::ResultBuffer<ffi::S32> token, int64_t context, int64_t channel, int64_t, bool back) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(y.element_type());
    if (!type) return Failed(type.error());
    const ExchangeKind kind = back ? ExchangeKind::kDispatchBack : ExchangeKind::kCombine;
    const auto send = CombineSendArgsOf(destination.config(), kind, *type, y, weights, scalars, positions, rows);
    const auto out_type = ElementTypeOf(out->element_type());
    if (!out_type) return Failed(out_type.error());
    auto receive = CombineReceiveArgsOf(destination.config(), *out_type, SendRouteOf(index, slot, token_ends), out);
    receive.layout = send.layout;
    receive.kind = kind;
    receive.scalars = back ? out_scalars->typed_data() : nullptr;
    return Exchange(call, destination, token, kind,
                    CombineSignature(receive.t_rows, *type, send.row_weights != nullptr, back), kernels::CombineSend,
                    send, kernels::CombineReceive, receive);
  });
}

// The gradient of combine.
ffi::Future Redispatch(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::AnyBuffer x,
                       F32 weights, ffi::AnyBuffer y, S32 index, S32 slot, S32 token_ends, S32 positions, S32 rows, S32,
                       ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::F32> dots,
                       ffi::ResultBuffer<ffi::S32> token, int64_t context, int64_t channel, int64_t) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(x.element_type());
    if (!type) return Failed(type.error());
    const auto y_type = ElementTypeOf(y.element_type());
    if (!y_type) return Failed(y_type.error());
    const auto [send, receive] =
        RedispatchArgsOf(destination.config(), *type, x, weights, *y_type, y, SendRouteOf(index, slot, token_ends),
                         {Route(positions), Route(rows)}, out, dots);
    AdviseHugePages(receive.out, out->size_bytes());
    const uint64_t signature = RedispatchSignature(send.t_rows, *type, receive.y != nullptr);
    return Exchange(call, destination, token, ExchangeKind::kRedispatch, signature, kernels::RedispatchSend, send,
                    kernels::RedispatchReceive, receive);
  });
}

XLA_FFI_DEFINE_HANDLER(kDispatch, Dispatch, BindingOf(Dispatch, "zero_padding"));
XLA_FFI_DEFINE_HANDLER(kCombine, Combine, BindingOf(Combine, "back"));
XLA_FFI_DEFINE_HANDLER(kRedispatch, Redispatch, BindingOf(Redispatch));

}  // namespace

std::vector<Target> MoeTargets() {
  std::vector<Target> targets = StartedMoeTargets();
  targets.insert(targets.end(), {{"jf_moe_dispatch", kInstantiateCall, kDispatch},
                                 {"jf_moe_combine", kInstantiateCall, kCombine},
                                 {"jf_moe_redispatch", kInstantiateCall, kRedispatch}});
  return targets;
}

}  // namespace jax_fabric::ffi_layer
