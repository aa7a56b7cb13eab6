// One custom call of MoE between XLA and a channel: which channel it means, and how its end becomes the call's end.
#ifndef JAX_FABRIC_FFI_MOE_CALL_H_
#define JAX_FABRIC_FFI_MOE_CALL_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "csrc/ffi/async_call.h"
#include "csrc/ffi/context_table.h"
#include "csrc/ffi/xla_ffi.h"
#include "csrc/moe/context.h"
#include "csrc/moe/exchanges.h"

namespace jax_fabric::ffi_layer {

namespace ffi = xla::ffi;
using S32 = ffi::Buffer<ffi::S32>;
using F32 = ffi::Buffer<ffi::F32>;
using RankOperand = ffi::BufferR0<ffi::S32>;

// One call instruction of a compiled program; XLA makes it when it compiles, in the program's order.
struct CallSiteState {
  static ffi::TypeId id;
  moe::CallSite site;
};

// What every exchange has of its own call.
struct Call {
  const CallSiteState* state;
  int32_t device;
  int64_t run;
  int64_t context;
  int64_t channel;
};

// The channel that a call means, found without a lock; kept open until the visit ends.
struct Destination {
  Visit visit;
  moe::Channel* channel = nullptr;
  Error error;

  Destination(LocalRank* rank, int64_t channel_index, int32_t axis_rank);
  const moe::MoeConfig& config() const { return static_cast<moe::Context*>(visit.context())->config(); }
  const kernels::SlotLayout& layout() const { return config().layout; }
  // For the kernels' argument of that name.
  int64_t cache_bytes() const;
};

ffi::Future Failed(const Error& error);
Error NoSuchRank(int64_t context, int32_t device);

// For all targets, which have different attributes besides context, channel and call_index.
extern XLA_FFI_Handler* const kInstantiateCall;

template <typename Body>
ffi::Future WithDestination(const Call& call, const RankOperand& rank, Body body) {
  LocalRank* local = ContextTable::Get().Find(call.context, call.device);
  if (local == nullptr) return Failed(NoSuchRank(call.context, call.device));
  Destination destination(local, call.channel, rank.typed_data()[0]);
  if (destination.channel == nullptr) return Failed(destination.error);
  return body(destination);
}

// An exchange whose end is the end of an XLA call.
template <typename SendArgs, typename ReceiveArgs>
class XlaExchange final : public moe::KernelExchange<SendArgs, ReceiveArgs>, public AsyncCall {
 public:
  template <typename... Args>
  XlaExchange(Executor* completion, int32_t* token, Args&&... args)
      : moe::KernelExchange<SendArgs, ReceiveArgs>(std::forward<Args>(args)...), AsyncCall(completion), token_(token) {}
  void Finish(const Error* error) override {
    *token_ = static_cast<int32_t>(this->sequence());
    Complete(error);
  }

 private:
  int32_t* const token_;
};

template <typename SendArgs, typename ReceiveArgs>
ffi::Future Exchange(const Call& call, const Destination& destination, ffi::ResultBuffer<ffi::S32>& token,
                     kernels::ExchangeKind kind, uint64_t signature, void (*send)(const SendArgs&), SendArgs send_args,
                     void (*receive)(const ReceiveArgs&), ReceiveArgs receive_args) {
  send_args.cache_bytes = receive_args.cache_bytes = destination.cache_bytes();
  const typename moe::KernelExchange<SendArgs, ReceiveArgs>::Kernels kernels{send, send_args, receive, receive_args};
  auto* exchange = new XlaExchange<SendArgs, ReceiveArgs>(destination.visit.completion(), token->typed_data(),
                                                          call.state->site, call.run, kind, signature, kernels);
  moe::Channel* channel = destination.channel;
  return AsyncCall::Run(exchange, [channel](auto* each) { channel->Submit(each); });
}

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_MOE_CALL_H_
