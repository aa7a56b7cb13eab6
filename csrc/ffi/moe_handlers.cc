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
    const auto send =
        DispatchSendArgsOf(destination, *type, x, experts, weights, scales, SendRouteOf(index, slot, token_ends));
    const DispatchResults results{tokens, row_weights, group_sizes, dropped, positions, rows, row_scales};
    const auto receive = DispatchReceiveArgsOf(destination, *tokens_type, send.t_rows, results, zero_padding);
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
    const auto send = CombineSendArgsOf(destination, kind, *type, y, weights, scalars, positions, rows);
    const auto out_type = ElementTypeOf(out->element_type());
    if (!out_type) return Failed(out_type.error());
    auto receive = CombineReceiveArgsOf(destination, *out_type, SendRouteOf(index, slot, token_ends), out);
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
    kernels::RedispatchSendArgs send;
    kernels::RedispatchReceiveArgs receive;
    send.layout = receive.layout = WithCapacity(destination.layout(), out->dimensions()[0]);
    send.t_rows = static_cast<int32_t>(x.dimensions()[0]);
    send.x_type = *type;
    send.x = x.untyped_data();
    send.route = SendRouteOf(index, slot, token_ends);
    const bool with_y = y.element_count() != 0;
    receive.route = {Route(positions), Route(rows)};
    receive.row_weights = Optional(weights);
    receive.y_type = *y_type;
    receive.y = with_y ? y.untyped_data() : nullptr;
    receive.out_type = *type;
    receive.out = out->untyped_data();
    AdviseHugePages(receive.out, out->size_bytes());
    receive.dots = with_y ? dots->typed_data() : nullptr;
    const uint64_t signature = Signature({3, send.t_rows, static_cast<int64_t>(*type), with_y});
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
