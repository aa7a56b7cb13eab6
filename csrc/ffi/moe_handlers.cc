#include "csrc/ffi/moe_handlers.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "csrc/base/huge_pages.h"
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

// One call instruction of a compiled program; XLA makes it when it compiles, in the program's order.
struct CallSiteState {
  static ffi::TypeId id;
  moe::CallSite site;
};
ffi::TypeId CallSiteState::id = {};
ffi::TypeInfo call_site_info = ffi::MakeTypeInfo<CallSiteState>();

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
      return MakeError(ErrorCode::kInvalidArgument,
                       "rows of XLA element type {}: float32, bfloat16 and float16 are supported",
                       static_cast<int>(type));
  }
}

uint64_t Signature(std::initializer_list<int64_t> fields) { return XXH3_64bits(fields.begin(), fields.size() * 8); }

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

  Destination(LocalRank* rank, int64_t channel_index, int32_t axis_rank) : visit(rank) {
    moe::Context* context = visit.context();
    if (context == nullptr) {
      error = Error{ErrorCode::kFailedPrecondition, "the fabric of this expert-parallel context was closed"};
      return;
    }
    const int32_t expected = context->config().layout.shape.rank;
    if (axis_rank != expected) {
      error =
          Error{ErrorCode::kInvalidArgument,
                fmt::format("called on rank {} of the axis, and this device is rank {} of the context: use the mesh "
                            "that the Fabric was made with",
                            axis_rank, expected)};
      return;
    }
    channel = context->channel(static_cast<int32_t>(channel_index));
    if (channel == nullptr) {
      error = Error{ErrorCode::kInvalidArgument, fmt::format("channel={}: the context has channels 0 to {}",
                                                             channel_index, context->config().channels - 1)};
    }
  }
  const kernels::SlotLayout& layout() const { return visit.context()->config().layout; }
};

template <typename Body>
ffi::Future WithDestination(const Call& call, const RankOperand& rank, Body body) {
  LocalRank* local = ContextTable::Get().Find(call.context, call.device);
  if (local == nullptr) {
    return Failed(
        Error{ErrorCode::kNotFound,
              fmt::format("expert-parallel context {} has no rank on device {}: call it inside of shard_map over "
                          "the Fabric's mesh",
                          call.context, call.device)});
  }
  Destination destination(local, call.channel, rank.typed_data()[0]);
  if (destination.channel == nullptr) return Failed(destination.error);
  return body(destination);
}

template <typename SendArgs, typename ReceiveArgs>
ffi::Future Exchange(const Call& call, const Destination& destination, ffi::ResultBuffer<ffi::S32>& token,
                     ExchangeKind kind, uint64_t signature, void (*send)(const SendArgs&), SendArgs send_args,
                     void (*receive)(const ReceiveArgs&), ReceiveArgs receive_args) {
  const typename moe::KernelExchange<SendArgs, ReceiveArgs>::Kernels kernels{send, send_args, receive, receive_args};
  auto* exchange = new XlaExchange<SendArgs, ReceiveArgs>(destination.visit.completion(), token->typed_data(),
                                                          call.state->site, call.run, kind, signature, kernels);
  moe::Channel* channel = destination.channel;
  return AsyncCall::Run(exchange, [channel](auto* each) { channel->Submit(each); });
}

// For all targets, which have different attributes besides these.
ffi::ErrorOr<std::unique_ptr<CallSiteState>> Instantiate(ffi::Dictionary attributes) {
  const auto context = attributes.get<int64_t>("context");
  const auto channel = attributes.get<int64_t>("channel");
  const auto call_index = attributes.get<int64_t>("call_index");
  if (!context || !channel || !call_index) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("a call needs the attributes context, channel and call_index"));
  }
  static std::atomic<uint64_t> next_serial{1};
  auto state = std::make_unique<CallSiteState>();
  state->site.serial = next_serial.fetch_add(1, std::memory_order_relaxed);
  state->site.key = Signature({*context, *channel, *call_index});
  return ffi::ErrorOr<std::unique_ptr<CallSiteState>>(std::move(state));
}

// Kernels take routes as out-pointers; where they only read them, XLA's operands are good for it.
int32_t* Route(const S32& operand) { return const_cast<int32_t*>(operand.typed_data()); }

// Routes of a batch point into the rows of all its elements.
kernels::SlotLayout WithCapacity(kernels::SlotLayout layout, int64_t rows) {
  layout.shape.capacity = rows;
  return layout;
}

const float* Optional(const F32& operand) { return operand.element_count() == 0 ? nullptr : operand.typed_data(); }

// --- the exchanges

ffi::Future Dispatch(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::AnyBuffer x,
                     S32 experts, F32 weights, S32, ffi::Result<ffi::AnyBuffer> tokens,
                     ffi::ResultBuffer<ffi::F32> row_weights, ffi::ResultBuffer<ffi::S32> group_sizes,
                     ffi::ResultBuffer<ffi::S32> dropped, ffi::ResultBuffer<ffi::S32> token,
                     ffi::ResultBuffer<ffi::S32> index, ffi::ResultBuffer<ffi::S32> slot,
                     ffi::ResultBuffer<ffi::S32> positions, ffi::ResultBuffer<ffi::S32> rows, int64_t context,
                     int64_t channel, int64_t, bool zero_padding) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(x.element_type());
    if (!type) return Failed(type.error());
    kernels::DispatchSendArgs send;
    kernels::DispatchReceiveArgs receive;
    send.layout = receive.layout = destination.layout();
    send.t_rows = static_cast<int32_t>(x.dimensions()[0]);
    send.x_type = *type;
    send.x = x.untyped_data();
    send.experts = experts.typed_data();
    send.weights = weights.typed_data();
    send.route = {index->typed_data(), slot->typed_data()};
    receive.tokens_type = *type;
    receive.tokens = tokens->untyped_data();
    AdviseHugePages(receive.tokens, tokens->size_bytes());
    receive.weights = row_weights->typed_data();
    receive.group_sizes = group_sizes->typed_data();
    receive.route = {positions->typed_data(), rows->typed_data()};
    // vmap folds a batch into the rows; each of its elements has the context's capacity.
    receive.elements = static_cast<int32_t>(tokens->dimensions()[0] / destination.layout().shape.capacity);
    receive.element_rows = std::max(1, send.t_rows / receive.elements);
    receive.drop_overflow = destination.visit.context()->config().drop_overflow;
    receive.zero_padding = zero_padding;
    receive.dropped = dropped->typed_data();
    const uint64_t signature = Signature({1, send.t_rows, receive.elements, static_cast<int64_t>(*type)});
    return Exchange(call, destination, token, ExchangeKind::kDispatch, signature, kernels::DispatchSend, send,
                    kernels::DispatchReceive, receive);
  });
}

// Combine, and with `back` the gradient of dispatch.
ffi::Future Combine(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::AnyBuffer y,
                    F32 weights, F32 scalars, S32 index, S32 slot, S32 positions, S32 rows, S32,
                    ffi::Result<ffi::AnyBuffer> out, ffi::ResultBuffer<ffi::F32> out_scalars,
                    ffi::ResultBuffer<ffi::S32> token, int64_t context, int64_t channel, int64_t, bool back) {
  const Call call{state, device, run.run_id, context, channel};
  return WithDestination(call, rank, [&](const Destination& destination) {
    const auto type = ElementTypeOf(y.element_type());
    if (!type) return Failed(type.error());
    kernels::CombineSendArgs send;
    kernels::CombineReceiveArgs receive;
    send.layout = receive.layout = WithCapacity(destination.layout(), y.dimensions()[0]);
    send.kind = back ? ExchangeKind::kDispatchBack : ExchangeKind::kCombine;
    send.y_type = *type;
    send.y = y.untyped_data();
    send.row_weights = Optional(weights);
    send.row_scalars = Optional(scalars);
    send.route = {Route(positions), Route(rows)};
    receive.t_rows = static_cast<int32_t>(out->dimensions()[0]);
    receive.route = {Route(index), Route(slot)};
    receive.out_type = *type;
    receive.out = out->untyped_data();
    receive.scalars = back ? out_scalars->typed_data() : nullptr;
    const uint64_t signature =
        Signature({2, receive.t_rows, static_cast<int64_t>(*type), send.row_weights != nullptr, back});
    return Exchange(call, destination, token, send.kind, signature, kernels::CombineSend, send, kernels::CombineReceive,
                    receive);
  });
}

// The gradient of combine.
ffi::Future Redispatch(CallSiteState* state, int32_t device, ffi::RunId run, RankOperand rank, ffi::AnyBuffer x,
                       F32 weights, ffi::AnyBuffer y, S32 index, S32 slot, S32 positions, S32 rows, S32,
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
    send.route = {Route(index), Route(slot)};
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

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kDispatch, Dispatch,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CallSiteState>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::RunId>()
                           .Arg<RankOperand>()     // rank
                           .Arg<ffi::AnyBuffer>()  // x
                           .Arg<S32>()             // experts
                           .Arg<F32>()             // weights
                           .Arg<S32>()             // after
                           .Ret<ffi::AnyBuffer>()  // tokens
                           .Ret<F32>()             // weights
                           .Ret<S32>()             // group sizes
                           .Ret<S32>()             // dropped
                           .Ret<S32>()             // token
                           .Ret<S32>()             // index
                           .Ret<S32>()             // slot
                           .Ret<S32>()             // positions
                           .Ret<S32>()             // rows
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel")
                           .Attr<int64_t>("call_index")
                           .Attr<bool>("zero_padding"));
XLA_FFI_DEFINE_HANDLER(kCombine, Combine,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CallSiteState>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::RunId>()
                           .Arg<RankOperand>()     // rank
                           .Arg<ffi::AnyBuffer>()  // y
                           .Arg<F32>()             // weights
                           .Arg<F32>()             // scalars
                           .Arg<S32>()             // index
                           .Arg<S32>()             // slot
                           .Arg<S32>()             // positions
                           .Arg<S32>()             // rows
                           .Arg<S32>()             // after
                           .Ret<ffi::AnyBuffer>()  // out
                           .Ret<F32>()             // scalars
                           .Ret<S32>()             // token
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel")
                           .Attr<int64_t>("call_index")
                           .Attr<bool>("back"));
XLA_FFI_DEFINE_HANDLER(kRedispatch, Redispatch,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CallSiteState>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::RunId>()
                           .Arg<RankOperand>()     // rank
                           .Arg<ffi::AnyBuffer>()  // x
                           .Arg<F32>()             // weights
                           .Arg<ffi::AnyBuffer>()  // y
                           .Arg<S32>()             // index
                           .Arg<S32>()             // slot
                           .Arg<S32>()             // positions
                           .Arg<S32>()             // rows
                           .Arg<S32>()             // after
                           .Ret<ffi::AnyBuffer>()  // out
                           .Ret<F32>()             // dots
                           .Ret<S32>()             // token
                           .Attr<int64_t>("context")
                           .Attr<int64_t>("channel")
                           .Attr<int64_t>("call_index"));

}  // namespace

std::vector<Target> MoeTargets() {
  return {
      {"jf_moe_dispatch", kInstantiate, kDispatch},
      {"jf_moe_combine", kInstantiate, kCombine},
      {"jf_moe_redispatch", kInstantiate, kRedispatch},
  };
}

std::pair<XLA_FFI_TypeId*, XLA_FFI_TypeInfo*> CallSiteType() { return {&CallSiteState::id, &call_site_info}; }

}  // namespace jax_fabric::ffi_layer
