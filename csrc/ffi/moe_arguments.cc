#include "csrc/ffi/moe_arguments.h"

#include <xxhash.h>

#include <algorithm>

namespace jax_fabric::ffi_layer {

using kernels::ElementType;
using kernels::ExchangeKind;

uint64_t Signature(std::initializer_list<int64_t> fields) { return XXH3_64bits(fields.begin(), fields.size() * 8); }

Result<ElementType> ElementTypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::F32:
      return ElementType::kFloat32;
    case ffi::BF16:
      return ElementType::kBfloat16;
    case ffi::F16:
      return ElementType::kFloat16;
    case ffi::F8E4M3FN:
      return ElementType::kFloat8E4m3fn;
    default:
      return MakeError(ErrorCode::kInvalidArgument,
                       "rows of XLA element type {}: float32, bfloat16, float16 and float8_e4m3fn are supported",
                       static_cast<int>(type));
  }
}

int32_t* Route(const S32& operand) { return const_cast<int32_t*>(operand.typed_data()); }

kernels::SlotLayout WithCapacity(kernels::SlotLayout layout, int64_t rows) {
  layout.shape.capacity = rows;
  return layout;
}

const float* Optional(const F32& operand) { return operand.element_count() == 0 ? nullptr : operand.typed_data(); }

kernels::SendRoute SendRouteOf(const S32& index, const S32& slot, const S32& token_ends) {
  return {Route(index), Route(slot), Route(token_ends)};
}

kernels::SendRoute SendRouteOf(ffi::ResultBuffer<ffi::S32>& index, ffi::ResultBuffer<ffi::S32>& slot,
                               ffi::ResultBuffer<ffi::S32>& token_ends) {
  return {index->typed_data(), slot->typed_data(), token_ends->typed_data()};
}

kernels::DispatchSendArgs LaterDispatchSendArgsOf(const moe::MoeConfig& config, ElementType type,
                                                  const ffi::AnyBuffer& x, const F32& scales,
                                                  const kernels::SendRoute& route) {
  kernels::DispatchSendArgs send;
  send.layout = config.layout;
  send.t_rows = static_cast<int32_t>(x.dimensions()[0]);
  send.x_type = type;
  send.x = x.untyped_data();
  send.scales = Optional(scales);
  send.route = route;
  return send;
}

kernels::DispatchSendArgs DispatchSendArgsOf(const moe::MoeConfig& config, ElementType type, const ffi::AnyBuffer& x,
                                             const S32& experts, const F32& weights, const F32& scales,
                                             const kernels::SendRoute& route) {
  kernels::DispatchSendArgs send = LaterDispatchSendArgsOf(config, type, x, scales, route);
  send.experts = experts.typed_data();
  send.weights = weights.typed_data();
  const std::vector<uint8_t>& absent = config.absent;
  send.absent = absent.empty() ? nullptr : absent.data();
  return send;
}

kernels::DispatchReceiveArgs DispatchReceiveArgsOf(const moe::MoeConfig& config, ElementType type, int32_t t_rows,
                                                   const DispatchResults& results, bool zero_padding) {
  kernels::DispatchReceiveArgs receive;
  receive.layout = config.layout;
  receive.tokens_type = type;
  receive.tokens = results.tokens->untyped_data();
  receive.scales = results.scales->element_count() == 0 ? nullptr : results.scales->typed_data();
  receive.weights = results.weights->typed_data();
  receive.group_sizes = results.group_sizes->typed_data();
  receive.route = {results.positions->typed_data(), results.rows->typed_data()};
  // vmap folds a batch into the rows; each of its elements has the context's capacity.
  receive.elements = static_cast<int32_t>(results.tokens->dimensions()[0] / config.layout.shape.capacity);
  receive.element_rows = std::max(1, t_rows / receive.elements);
  receive.drop_overflow = config.drop_overflow;
  receive.zero_padding = zero_padding;
  receive.dropped = results.dropped->typed_data();
  return receive;
}

uint64_t DispatchSignature(int32_t t_rows, int32_t elements, ElementType type) {
  return Signature({1, t_rows, elements, static_cast<int64_t>(type)});
}

kernels::CombineSendArgs CombineSendArgsOf(const moe::MoeConfig& config, ExchangeKind kind, ElementType type,
                                           const ffi::AnyBuffer& y, const F32& weights, const F32& scalars,
                                           const S32& positions, const S32& rows) {
  kernels::CombineSendArgs send;
  send.layout = WithCapacity(config.layout, y.dimensions()[0]);
  send.kind = kind;
  send.y_type = type;
  send.y = y.untyped_data();
  send.row_weights = Optional(weights);
  send.row_scalars = Optional(scalars);
  send.route = {Route(positions), Route(rows)};
  return send;
}

kernels::CombineReceiveArgs CombineReceiveArgsOf(const moe::MoeConfig& config, ElementType type,
                                                 const kernels::SendRoute& route, ffi::Result<ffi::AnyBuffer>& out) {
  kernels::CombineReceiveArgs receive;
  receive.layout = config.layout;
  receive.t_rows = static_cast<int32_t>(out->dimensions()[0]);
  receive.route = route;
  receive.out_type = type;
  receive.out = out->untyped_data();
  return receive;
}

uint64_t CombineSignature(int64_t t_rows, ElementType type, bool weighted, bool back) {
  return Signature({2, t_rows, static_cast<int64_t>(type), weighted, back});
}

std::pair<kernels::RedispatchSendArgs, kernels::RedispatchReceiveArgs> RedispatchArgsOf(
    const moe::MoeConfig& config, ElementType type, const ffi::AnyBuffer& x, const F32& weights, ElementType y_type,
    const ffi::AnyBuffer& y, const kernels::SendRoute& send_route, const kernels::ReceiveRoute& receive_route,
    ffi::Result<ffi::AnyBuffer>& out, ffi::ResultBuffer<ffi::F32>& dots) {
  kernels::RedispatchSendArgs send;
  kernels::RedispatchReceiveArgs receive;
  send.layout = receive.layout = WithCapacity(config.layout, out->dimensions()[0]);
  send.t_rows = static_cast<int32_t>(x.dimensions()[0]);
  send.x_type = type;
  send.x = x.untyped_data();
  send.route = send_route;
  const bool with_y = y.element_count() != 0;
  receive.route = receive_route;
  receive.row_weights = Optional(weights);
  receive.y_type = y_type;
  receive.y = with_y ? y.untyped_data() : nullptr;
  receive.out_type = type;
  receive.out = out->untyped_data();
  receive.dots = with_y ? dots->typed_data() : nullptr;
  return {send, receive};
}

uint64_t RedispatchSignature(int64_t t_rows, ElementType type, bool with_y) {
  return Signature({3, t_rows, static_cast<int64_t>(type), with_y});
}

}  // namespace jax_fabric::ffi_layer
