#include "csrc/ffi/moe_handlers.h"

#include <xxhash.h>

#include <atomic>
#include <memory>

#include "csrc/ffi/async_call.h"
#include "csrc/ffi/context_table.h"
#include "csrc/moe/exchanges.h"

namespace jax_fabric::ffi_layer {
namespace {

namespace ffi = xla::ffi;
using kernels::ElementType;
using kernels::ExchangeKind;
using S32 = ffi::Buffer<ffi::S32>;
using F32 = ffi::Buffer<ffi::F32>;
using RankOperand = ffi::BufferR0<ffi::S32>;

// One jf_moe_ticket instruction of a compiled program; XLA makes it when it compiles, in the program's order.
struct TicketSite {
  static ffi::TypeId id;
  moe::CallSite site;
};
ffi::TypeId TicketSite::id = {};
ffi::TypeInfo ticket_site_info = ffi::MakeTypeInfo<TicketSite>();

ffi::Future Failed(const Error& error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(ToXlaError(error));
  return future;
}

Result<ElementType> ElementTypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::F32:
      return ElementType::kFloat32;
    case ffi::BF16:
      return ElementType::kBfloat16;
    case ffi::F16:
      return ElementType::kFloat16;
    default:
      return MakeError(ErrorCode::kInvalidArgument, "rows of XLA element type {}: float32, bfloat16 and float16 are supported",
                       static_cast<int>(type));
  }
}

uint64_t Signature(std::initializer_list<int64_t> fields) { return XXH3_64bits(fields.begin(), fields.size() * 8); }

// An operation whose end is the end of an XLA call.
template <typename Operation>
class XlaOperation final : public Operation, public AsyncCall {
 public:
  template <typename... Args>
  explicit XlaOperation(Executor* completion, Args&&... args)
      : Operation(std::forward<Args>(args)...), AsyncCall(completion) {}
  void Finish(const Error* error) override { Complete(error); }
};

class XlaTicket final : public moe::TicketOperation, public AsyncCall {
 public:
  XlaTicket(Executor* completion, const moe::CallSite& site, int64_t run, int32_t* out)
      : TicketOperation(site, run), AsyncCall(completion), out_(out) {}
  void Finish(const Error* error) override {
    *out_ = static_cast<int32_t>(sequence);
    Complete(error);
  }

 private:
  int32_t* const out_;
};

// The channel that a call means, found without a lock; kept open until the visit ends.
struct Destination {
  Visit visit;
  moe::Channel* channel = nullptr;
  Error error;

  Destination(LocalRank* rank, int64_t channel_index, int32_t axis_rank) : visit(rank) {
    moe::Context* context = visit.context();
    if (context == nullptr) {
      error = Error{ErrorCode::kFailedPrecondition, "the fabric of this expert-parallel context was closed"};
      return;
    }
    const int32_t expected = context->config().layout.shape.rank;
    if (axis_rank != expected) {
      error = Error{ErrorCode::kInvalidArgument,
                    fmt::format("called on rank {} of the axis, and this device is rank {} of the context: use the mesh "
                                "that the Fabric was made with",
                                axis_rank, expected)};
      return;
    }
    channel = context->channel(static_cast<int32_t>(channel_index));
    if (channel == nullptr) {
      error = Error{ErrorCode::kInvalidArgument, fmt::format("channel={}: the context has channels 0 to {}", channel_index,
                                                             context->config().channels - 1)};
    }
  }
  const kernels::SlotLayout& layout() const { return visit.context()->config().layout; }
};

template <typename Body>
ffi::Future WithDestination(int64_t context, int32_t device, int64_t channel, const RankOperand& rank, Body body) {
  LocalRank* local = ContextTable::Get().Find(context, device);
  if (local == nullptr) {
    return Failed(Error{ErrorCode::kNotFound,
                        fmt::format("expert-parallel context {} has no rank on device {}: call it inside of shard_map over "
                                    "the Fabric's mesh",
                                    context, device)});
  }
  Destination destination(local, channel, rank.typed_data()[0]);
  if (destination.channel == nullptr) return Failed(destination.error);
  return body(destination);
}

template <typename Base, typename... Args>
ffi::Future Submit(const Destination& destination, Args&&... args) {
  auto* operation = new XlaOperation<Base>(destination.visit.completion(), std::forward<Args>(args)...);
  moe::Channel* channel = destination.channel;
  return AsyncCall::Run(operation, [channel](auto* call) { channel->Submit(call); });
}

// --- ticket

ffi::ErrorOr<std::unique_ptr<TicketSite>> InstantiateTicket(int64_t context, int64_t channel, int64_t call_index) {
  static std::atomic<uint64_t> next_serial{1};
  auto state = std::make_unique<TicketSite>();
  state->site.serial = next_serial.fetch_add(1, std::memory_order_relaxed);
  state->site.key = Signature({context, channel, call_index});
  return ffi::ErrorOr<std::unique_ptr<TicketSite>>(std::move(state));
}

ffi::Future ExecuteTicket(TicketSite* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::RemainingArgs,
                          ffi::ResultBuffer<ffi::S32> ticket, int64_t context, int64_t channel, int64_t) {
  return WithDestination(context, device, channel, rank, [&](const Destination& destination) {
    auto* operation =
        new XlaTicket(destination.visit.completion(), state->site, run.run_id, ticket->typed_data());
    moe::Channel* target = destination.channel;
    return AsyncCall::Run(operation, [target](XlaTicket* call) { target->Submit(call); });
  });
}

// --- dispatch

ffi::Future DispatchStart(int32_t device, S32 ticket, RankOperand rank, ffi::AnyBuffer x, S32 experts, F32 weights,
                          ffi::ResultBuffer<ffi::S32> index, ffi::ResultBuffer<ffi::S32> slot,
                          ffi::ResultBuffer<ffi::S32> ticket_out, int64_t context, int64_t channel) {
  ticket_out->typed_data()[0] = ticket.typed_data()[0];
  return WithDestination(context, device, channel, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(x.element_type());
    if (!type) return Failed(type.error());
    kernels::DispatchSendArgs args;
    args.layout = destination.layout();
    args.t_rows = static_cast<int32_t>(x.dimensions()[0]);
    args.x_type = *type;
    args.x = x.untyped_data();
    args.experts = experts.typed_data();
    args.weights = weights.typed_data();
    args.route = {index->typed_data(), slot->typed_data()};
    const uint64_t signature = Signature({1, args.t_rows, static_cast<int64_t>(*type)});
    return Submit<moe::KernelStart<kernels::DispatchSendArgs>>(
        destination, int64_t{ticket.typed_data()[0]}, ExchangeKind::kDispatch, signature, kernels::DispatchSend, args);
  });
}

ffi::Future DispatchDone(int32_t device, S32 ticket, RankOperand rank, ffi::Result<ffi::AnyBuffer> tokens,
                         ffi::ResultBuffer<ffi::F32> weights, ffi::ResultBuffer<ffi::S32> group_sizes,
                         ffi::ResultBuffer<ffi::S32> positions, ffi::ResultBuffer<ffi::S32> rows,
                         ffi::ResultBuffer<ffi::S32> dropped, ffi::ResultBuffer<ffi::S32> ticket_out, int64_t context,
                         int64_t channel, bool zero_padding) {
  ticket_out->typed_data()[0] = ticket.typed_data()[0];
  return WithDestination(context, device, channel, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(tokens->element_type());
    if (!type) return Failed(type.error());
    kernels::DispatchReceiveArgs args;
    args.layout = destination.layout();
    args.tokens_type = *type;
    args.tokens = tokens->untyped_data();
    args.weights = weights->typed_data();
    args.group_sizes = group_sizes->typed_data();
    args.route = {positions->typed_data(), rows->typed_data()};
    args.drop_overflow = destination.visit.context()->config().drop_overflow;
    args.zero_padding = zero_padding;
    args.dropped = dropped->typed_data();
    return Submit<moe::KernelDone<kernels::DispatchReceiveArgs>>(destination, int64_t{ticket.typed_data()[0]},
                                                                 ExchangeKind::kDispatch, kernels::DispatchReceive, args);
  });
}

// --- combine and the gradient of dispatch

ExchangeKind CombineKind(bool back) { return back ? ExchangeKind::kDispatchBack : ExchangeKind::kCombine; }

ffi::Future CombineStart(int32_t device, S32 ticket, RankOperand rank, ffi::AnyBuffer y, F32 weights, F32 scalars,
                         S32 positions, S32 rows, ffi::ResultBuffer<ffi::S32> ticket_out, int64_t context,
                         int64_t channel, bool back) {
  ticket_out->typed_data()[0] = ticket.typed_data()[0];
  return WithDestination(context, device, channel, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(y.element_type());
    if (!type) return Failed(type.error());
    kernels::CombineSendArgs args;
    args.layout = destination.layout();
    args.kind = CombineKind(back);
    args.y_type = *type;
    args.y = y.untyped_data();
    args.row_weights = weights.element_count() == 0 ? nullptr : weights.typed_data();
    args.row_scalars = scalars.element_count() == 0 ? nullptr : scalars.typed_data();
    // The kernel only reads them here.
    args.route = {const_cast<int32_t*>(positions.typed_data()), const_cast<int32_t*>(rows.typed_data())};
    const uint64_t signature = Signature({2, static_cast<int64_t>(*type), args.row_weights != nullptr, back});
    return Submit<moe::KernelStart<kernels::CombineSendArgs>>(destination, int64_t{ticket.typed_data()[0]}, args.kind,
                                                              signature, kernels::CombineSend, args);
  });
}

ffi::Future CombineDone(int32_t device, S32 ticket, RankOperand rank, S32 index, S32 slot,
                        ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::F32> scalars,
                        ffi::ResultBuffer<ffi::S32> ticket_out, int64_t context, int64_t channel, bool back) {
  ticket_out->typed_data()[0] = ticket.typed_data()[0];
  return WithDestination(context, device, channel, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(out->element_type());
    if (!type) return Failed(type.error());
    kernels::CombineReceiveArgs args;
    args.layout = destination.layout();
    args.t_rows = static_cast<int32_t>(out->dimensions()[0]);
    args.route = {const_cast<int32_t*>(index.typed_data()), const_cast<int32_t*>(slot.typed_data())};
    args.out_type = *type;
    args.out = out->untyped_data();
    args.scalars = back ? scalars->typed_data() : nullptr;
    return Submit<moe::KernelDone<kernels::CombineReceiveArgs>>(destination, int64_t{ticket.typed_data()[0]},
                                                                CombineKind(back), kernels::CombineReceive, args);
  });
}

// --- the gradient of combine

ffi::Future RedispatchStart(int32_t device, S32 ticket, RankOperand rank, ffi::AnyBuffer x, S32 index, S32 slot,
                            ffi::ResultBuffer<ffi::S32> ticket_out, int64_t context, int64_t channel) {
  ticket_out->typed_data()[0] = ticket.typed_data()[0];
  return WithDestination(context, device, channel, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(x.element_type());
    if (!type) return Failed(type.error());
    kernels::RedispatchSendArgs args;
    args.layout = destination.layout();
    args.t_rows = static_cast<int32_t>(x.dimensions()[0]);
    args.x_type = *type;
    args.x = x.untyped_data();
    args.route = {const_cast<int32_t*>(index.typed_data()), const_cast<int32_t*>(slot.typed_data())};
    const uint64_t signature = Signature({3, args.t_rows, static_cast<int64_t>(*type)});
    return Submit<moe::KernelStart<kernels::RedispatchSendArgs>>(destination, int64_t{ticket.typed_data()[0]},
                                                                 ExchangeKind::kRedispatch, signature,
                                                                 kernels::RedispatchSend, args);
  });
}

ffi::Future RedispatchDone(int32_t device, S32 ticket, RankOperand rank, S32 positions, S32 rows, F32 weights,
                           ffi::AnyBuffer y, ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::F32> dots,
                           ffi::ResultBuffer<ffi::S32> ticket_out, int64_t context, int64_t channel) {
  ticket_out->typed_data()[0] = ticket.typed_data()[0];
  return WithDestination(context, device, channel, rank, [&](const Destination& destination) {
    const auto out_type = ElementTypeOf(out->element_type());
    if (!out_type) return Failed(out_type.error());
    const auto y_type = ElementTypeOf(y.element_type());
    if (!y_type) return Failed(y_type.error());
    const bool with_y = y.element_count() != 0;
    kernels::RedispatchReceiveArgs args;
    args.layout = destination.layout();
    args.route = {const_cast<int32_t*>(positions.typed_data()), const_cast<int32_t*>(rows.typed_data())};
    args.row_weights = weights.element_count() == 0 ? nullptr : weights.typed_data();
    args.y_type = *y_type;
    args.y = with_y ? y.untyped_data() : nullptr;
    args.out_type = *out_type;
    args.out = out->untyped_data();
    args.dots = with_y ? dots->typed_data() : nullptr;
    return Submit<moe::KernelDone<kernels::RedispatchReceiveArgs>>(destination, int64_t{ticket.typed_data()[0]},
                                                                   ExchangeKind::kRedispatch, kernels::RedispatchReceive,
                                                                   args);
  });
}

XLA_FFI_DEFINE_HANDLER(kInstantiateTicket, InstantiateTicket,
                       ffi::Ffi::BindInstantiate()
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel")
                           .Attr<int64_t>("call_index"));
XLA_FFI_DEFINE_HANDLER(kExecuteTicket, ExecuteTicket,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<TicketSite>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::RunId>()
                           .Arg<RankOperand>()
                           .RemainingArgs()
                           .Ret<S32>()
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel")
                           .Attr<int64_t>("call_index"));
XLA_FFI_DEFINE_HANDLER(kDispatchStart, DispatchStart,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<S32>()
                           .Arg<RankOperand>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<S32>()
                           .Arg<F32>()
                           .Ret<S32>()
                           .Ret<S32>()
                           .Ret<S32>()
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel"));
XLA_FFI_DEFINE_HANDLER(kDispatchDone, DispatchDone,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<S32>()
                           .Arg<RankOperand>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<F32>()
                           .Ret<S32>()
                           .Ret<S32>()
                           .Ret<S32>()
                           .Ret<S32>()
                           .Ret<S32>()
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel")
                           .Attr<bool>("zero_padding"));
XLA_FFI_DEFINE_HANDLER(kCombineStart, CombineStart,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<S32>()
                           .Arg<RankOperand>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<F32>()
                           .Arg<F32>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Ret<S32>()
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel")
                           .Attr<bool>("back"));
XLA_FFI_DEFINE_HANDLER(kCombineDone, CombineDone,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<S32>()
                           .Arg<RankOperand>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<F32>()
                           .Ret<S32>()
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel")
                           .Attr<bool>("back"));
XLA_FFI_DEFINE_HANDLER(kRedispatchStart, RedispatchStart,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<S32>()
                           .Arg<RankOperand>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Ret<S32>()
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel"));
XLA_FFI_DEFINE_HANDLER(kRedispatchDone, RedispatchDone,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<S32>()
                           .Arg<RankOperand>()
                           .Arg<S32>()
                           .Arg<S32>()
                           .Arg<F32>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<F32>()
                           .Ret<S32>()
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel"));

}  // namespace

std::vector<Target> MoeTargets() {
  return {
      {"jf_moe_ticket", kInstantiateTicket, kExecuteTicket},
      {"jf_moe_dispatch_start", nullptr, kDispatchStart},
      {"jf_moe_dispatch_done", nullptr, kDispatchDone},
      {"jf_moe_combine_start", nullptr, kCombineStart},
      {"jf_moe_combine_done", nullptr, kCombineDone},
      {"jf_moe_redispatch_start", nullptr, kRedispatchStart},
      {"jf_moe_redispatch_done", nullptr, kRedispatchDone},
  };
}

std::pair<XLA_FFI_TypeId*, XLA_FFI_TypeInfo*> CallSiteType() { return {&TicketSite::id, &ticket_site_info}; }

}  // namespace jax_fabric::ffi_layer
