// Exchanges in two halves.
#include "csrc/base/huge_pages.h"
#include "csrc/ffi/call_binding.h"
#include "csrc/ffi/moe_arguments.h"
#include "csrc/ffi/moe_call.h"
#include "csrc/ffi/moe_handlers.h"
#include "csrc/moe/started_exchange.h"

namespace jax_fabric::ffi_layer {
namespace {

using kernels::ExchangeKind;

// A call that starts an exchange ends when the exchange is packed: then XLA may have its operands back.
class StartCall final : public moe::StartListener, public AsyncCall {
 public:
  StartCall(Executor* completion, int32_t* ticket) : AsyncCall(completion), ticket_(ticket) {}
  void Started(const Error* error, int64_t sequence) override {
    *ticket_ = static_cast<int32_t>(sequence);
    Complete(error);
  }

 private:
  int32_t* const ticket_;
};

// A call that ends with the exchange that another one has started.
template <typename SendArgs, typename ReceiveArgs>
class DoneCall final : public moe::KernelResultRequest<SendArgs, ReceiveArgs>, public AsyncCall {
 public:
  template <typename... Args>
  DoneCall(Executor* completion, int32_t* token, Args&&... args)
      : moe::KernelResultRequest<SendArgs, ReceiveArgs>(std::forward<Args>(args)...),
        AsyncCall(completion),
        token_(token) {}
  void End(const Error* error) override {
    *token_ = this->sequence();
    Complete(error);
  }

 private:
  int32_t* const token_;
};

template <typename SendArgs, typename ReceiveArgs>
ffi::Future Start(const Call& call, const Destination& destination, ffi::ResultBuffer<ffi::S32>& ticket,
                  ExchangeKind kind, uint64_t signature, void (*send)(const SendArgs&), SendArgs send_args,
                  void (*)(const ReceiveArgs&)) {
  send_args.cache_bytes = destination.cache_bytes();
  auto* start = new StartCall(destination.visit.completion(), ticket->typed_data());
  auto* exchange = new moe::StartedExchange<SendArgs, ReceiveArgs>(call.state->site, call.run, kind, signature, send,
                                                                   send_args, start);
  moe::Channel* channel = destination.channel;
  return AsyncCall::Run(start, [&](auto*) { channel->Submit(exchange); });
}

template <typename SendArgs, typename ReceiveArgs>
ffi::Future Done(const Destination& destination, const S32& ticket, ffi::ResultBuffer<ffi::S32>& token,
                 ExchangeKind kind, SendArgs send_args, void (*receive)(const ReceiveArgs&), ReceiveArgs receive_args) {
  send_args.cache_bytes = receive_args.cache_bytes = destination.cache_bytes();
  auto* done = new DoneCall<SendArgs, ReceiveArgs>(destination.visit.completion(), token->typed_data(), kind,
                                                   ticket.typed_data()[0], send_args, receive, receive_args);
  moe::Channel* channel = destination.channel;
  return AsyncCall::Run(done, [channel](auto* each) { channel->Attach(each); });
}

ffi::Future DispatchStart(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::AnyBuffer x,
                          S32 experts, F32 weights, F32 scales, S32, ffi::ResultBuffer<ffi::S32> ticket,
                          ffi::ResultBuffer<ffi::S32> index, ffi::ResultBuffer<ffi::S32> slot,
                          ffi::ResultBuffer<ffi::S32> token_ends, int64_t context, int64_t channel, int64_t) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(x.element_type());
    if (!type) return Failed(type.error());
    const auto send = DispatchSendArgsOf(destination.config(), *type, x, experts, weights, scales,
                                         SendRouteOf(index, slot, token_ends));
    return Start(call, destination, ticket, ExchangeKind::kDispatch, DispatchSignature(send.t_rows, 1, *type),
                 kernels::DispatchSend, send, kernels::DispatchReceive);
  });
}

// x and its route are for rounds after the first one, and of size 0 where there is none. What comes after them
// is there to be computed first.
ffi::Future DispatchDone(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, S32 ticket,
                         ffi::AnyBuffer x, F32 x_scales, S32 index, S32 slot, S32 token_ends, ffi::RemainingArgs,
                         ffi::Result<ffi::AnyBuffer> tokens, ffi::ResultBuffer<ffi::F32> row_weights,
                         ffi::ResultBuffer<ffi::S32> group_sizes, ffi::ResultBuffer<ffi::S32> dropped,
                         ffi::ResultBuffer<ffi::S32> token, ffi::ResultBuffer<ffi::S32> positions,
                         ffi::ResultBuffer<ffi::S32> rows, ffi::ResultBuffer<ffi::F32> scales, int64_t context,
                         int64_t channel, int64_t, bool zero_padding) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(tokens->element_type());
    if (!type) return Failed(type.error());
    const DispatchResults results{tokens, row_weights, group_sizes, dropped, positions, rows, scales};
    const auto receive = DispatchReceiveArgsOf(destination.config(), *type, destination.layout().shape.max_tokens,
                                               results, zero_padding);
    AdviseHugePages(receive.tokens, tokens->size_bytes());
    const auto x_type = ElementTypeOf(x.element_type());
    if (!x_type) return Failed(x_type.error());
    const auto send =
        LaterDispatchSendArgsOf(destination.config(), *x_type, x, x_scales, SendRouteOf(index, slot, token_ends));
    return Done(destination, ticket, token, ExchangeKind::kDispatch, send, kernels::DispatchReceive, receive);
  });
}

ffi::Future CombineStart(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::AnyBuffer y,
                         F32 weights, F32 scalars, S32 positions, S32 rows, S32, ffi::ResultBuffer<ffi::S32> ticket,
                         int64_t context, int64_t channel, int64_t, int64_t tokens) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(y.element_type());
    if (!type) return Failed(type.error());
    const auto send =
        CombineSendArgsOf(destination.config(), ExchangeKind::kCombine, *type, y, weights, scalars, positions, rows);
    return Start(call, destination, ticket, ExchangeKind::kCombine,
                 CombineSignature(tokens, *type, send.row_weights != nullptr, false), kernels::CombineSend, send,
                 kernels::CombineReceive);
  });
}

// y, weights, positions and rows are for rounds after the first one, as x is in DispatchDone.
ffi::Future CombineDone(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, S32 ticket, S32 index,
                        S32 slot, S32 token_ends, ffi::AnyBuffer y, F32 weights, S32 positions, S32 rows,
                        ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::S32> token,
                        int64_t context, int64_t channel, int64_t) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(out->element_type());
    if (!type) return Failed(type.error());
    const F32& no_scalars = weights;  // combine sends none
    const auto send =
        CombineSendArgsOf(destination.config(), ExchangeKind::kCombine, *type, y, weights, no_scalars, positions, rows);
    return Done(destination, ticket, token, ExchangeKind::kCombine, send, kernels::CombineReceive,
                CombineReceiveArgsOf(destination.config(), *type, SendRouteOf(index, slot, token_ends), out));
  });
}

XLA_FFI_DEFINE_HANDLER(kDispatchStart, DispatchStart, BindingOf(DispatchStart));
XLA_FFI_DEFINE_HANDLER(kDispatchDone, DispatchDone, BindingOf(DispatchDone, "zero_padding"));
XLA_FFI_DEFINE_HANDLER(kCombineStart, CombineStart, BindingOf(CombineStart, "tokens"));
XLA_FFI_DEFINE_HANDLER(kCombineDone, CombineDone, BindingOf(CombineDone));

}  // namespace

std::vector<Target> StartedMoeTargets() {
  return {
      {"jf_moe_dispatch_start", kInstantiateCall, kDispatchStart},
      {"jf_moe_dispatch_done", kInstantiateCall, kDispatchDone},
      {"jf_moe_combine_start", kInstantiateCall, kCombineStart},
      {"jf_moe_combine_done", kInstantiateCall, kCombineDone},
  };
}

}  // namespace jax_fabric::ffi_layer
