#include "csrc/ffi/moe_arguments.h"

#include <xxhash.h>

#include <algorithm>

#include "csrc/base/huge_pages.h"

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

kernels::DispatchSendArgs LaterDispatchSendArgsOf(const Destination& destination, ElementType type,
                                                  const ffi::AnyBuffer& x, const F32& scales,
                                                  const kernels::SendRoute& route) {
  kernels::DispatchSendArgs send;
  send.layout = destination.layout();
  send.t_rows = static_cast<int32_t>(x.dimensions()[0]);
  send.x_type = type;
  send.x = x.untyped_data();
  send.scales = Optional(scales);
  send.route = route;
  return send;
}

kernels::DispatchSendArgs DispatchSendArgsOf(const Destination& destination, ElementType type, const ffi::AnyBuffer& x,
                                             const S32& experts, const F32& weights, const F32& scales,
                                             const kernels::SendRoute& route) {
  kernels::DispatchSendArgs send = LaterDispatchSendArgsOf(destination, type, x, scales, route);
  send.experts = experts.typed_data();
  send.weights = weights.typed_data();
  const std::vector<uint8_t>& absent = destination.config().absent;
  send.absent = absent.empty() ? nullptr : absent.data();
  return send;
}

kernels::DispatchReceiveArgs DispatchReceiveArgsOf(const Destination& destination, ElementType type, int32_t t_rows,
                                                   const DispatchResults& results, bool zero_padding) {
  kernels::DispatchReceiveArgs receive;
  receive.layout = destination.layout();
  receive.tokens_type = type;
  receive.tokens = results.tokens->untyped_data();
  AdviseHugePages(receive.tokens, results.tokens->size_bytes());
  receive.scales = results.scales->element_count() == 0 ? nullptr : results.scales->typed_data();
  receive.weights = results.weights->typed_data();
  receive.group_sizes = results.group_sizes->typed_data();
  receive.route = {results.positions->typed_data(), results.rows->typed_data()};
  // vmap folds a batch into the rows; each of its elements has the context's capacity.
  receive.elements = static_cast<int32_t>(results.tokens->dimensions()[0] / destination.layout().shape.capacity);
  receive.element_rows = std::max(1, t_rows / receive.elements);
  receive.drop_overflow = destination.config().drop_overflow;
  receive.zero_padding = zero_padding;
  receive.dropped = results.dropped->typed_data();
  return receive;
}

uint64_t DispatchSignature(int32_t t_rows, int32_t elements, ElementType type) {
  return Signature({1, t_rows, elements, static_cast<int64_t>(type)});
}

kernels::CombineSendArgs CombineSendArgsOf(const Destination& destination, ExchangeKind kind, ElementType type,
                                           const ffi::AnyBuffer& y, const F32& weights, const F32& scalars,
                                           const S32& positions, const S32& rows) {
  kernels::CombineSendArgs send;
  send.layout = WithCapacity(destination.layout(), y.dimensions()[0]);
  send.kind = kind;
  send.y_type = type;
  send.y = y.untyped_data();
  send.row_weights = Optional(weights);
  send.row_scalars = Optional(scalars);
  send.route = {Route(positions), Route(rows)};
  return send;
}

kernels::CombineReceiveArgs CombineReceiveArgsOf(const Destination& destination, ElementType type,
                                                 const kernels::SendRoute& route, ffi::Result<ffi::AnyBuffer>& out) {
  kernels::CombineReceiveArgs receive;
  receive.layout = destination.layout();
  receive.t_rows = static_cast<int32_t>(out->dimensions()[0]);
  receive.route = route;
  receive.out_type = type;
  receive.out = out->untyped_data();
  return receive;
}

uint64_t CombineSignature(int64_t t_rows, ElementType type, bool weighted, bool back) {
  return Signature({2, t_rows, static_cast<int64_t>(type), weighted, back});
}

}  // namespace jax_fabric::ffi_layer
