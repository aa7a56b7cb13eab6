// From operands and results of XLA's calls to arguments of the kernels.
#ifndef JAX_FABRIC_FFI_MOE_ARGUMENTS_H_
#define JAX_FABRIC_FFI_MOE_ARGUMENTS_H_

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "csrc/ffi/moe_call.h"
#include "csrc/kernels/moe_kernels.h"

namespace jax_fabric::ffi_layer {

Result<kernels::ElementType> ElementTypeOf(ffi::DataType type);

// Kernels take routes as out-pointers; where they only read them, XLA's operands are good for it.
int32_t* Route(const S32& operand);
// Null for an operand of size 0.
const float* Optional(const F32& operand);
// Routes of a batch point into the rows of all its elements.
kernels::SlotLayout WithCapacity(kernels::SlotLayout layout, int64_t rows);

// Hash of what must be equal on all ranks.
uint64_t Signature(std::initializer_list<int64_t> fields);
uint64_t DispatchSignature(int32_t t_rows, int32_t elements, kernels::ElementType type);
uint64_t RedispatchSignature(int64_t t_rows, kernels::ElementType type, bool with_y);
uint64_t CombineSignature(int64_t t_rows, kernels::ElementType type, bool weighted, bool back);

// The route that the sender of a dispatch keeps: index, slot and token_ends, in this order.
kernels::SendRoute SendRouteOf(const S32& index, const S32& slot, const S32& token_ends);
kernels::SendRoute SendRouteOf(ffi::ResultBuffer<ffi::S32>& index, ffi::ResultBuffer<ffi::S32>& slot,
                               ffi::ResultBuffer<ffi::S32>& token_ends);

// What dispatch gives to whoever receives.
struct DispatchResults {
  ffi::Result<ffi::AnyBuffer>& tokens;
  ffi::ResultBuffer<ffi::F32>& weights;
  ffi::ResultBuffer<ffi::S32>& group_sizes;
  ffi::ResultBuffer<ffi::S32>& dropped;
  ffi::ResultBuffer<ffi::S32>& positions;
  ffi::ResultBuffer<ffi::S32>& rows;
  ffi::ResultBuffer<ffi::F32>& scales;
};

kernels::DispatchSendArgs DispatchSendArgsOf(const moe::MoeConfig& config, kernels::ElementType type,
                                             const ffi::AnyBuffer& x, const S32& experts, const F32& weights,
                                             const F32& scales, const kernels::SendRoute& route);
// What the rounds after the first one need of it.
kernels::DispatchSendArgs LaterDispatchSendArgsOf(const moe::MoeConfig& config, kernels::ElementType type,
                                                  const ffi::AnyBuffer& x, const F32& scales,
                                                  const kernels::SendRoute& route);
kernels::DispatchReceiveArgs DispatchReceiveArgsOf(const moe::MoeConfig& config, kernels::ElementType type,
                                                   int32_t t_rows, const DispatchResults& results, bool zero_padding);
kernels::CombineSendArgs CombineSendArgsOf(const moe::MoeConfig& config, kernels::ExchangeKind kind,
                                           kernels::ElementType type, const ffi::AnyBuffer& y, const F32& weights,
                                           const F32& scalars, const S32& positions, const S32& rows);
kernels::CombineReceiveArgs CombineReceiveArgsOf(const moe::MoeConfig& config, kernels::ElementType type,
                                                 const kernels::SendRoute& route, ffi::Result<ffi::AnyBuffer>& out);

// Both sides of the gradient of combine; y of size 0: without dots.
std::pair<kernels::RedispatchSendArgs, kernels::RedispatchReceiveArgs> RedispatchArgsOf(
    const moe::MoeConfig& config, kernels::ElementType type, const ffi::AnyBuffer& x, const F32& weights,
    kernels::ElementType y_type, const ffi::AnyBuffer& y, const kernels::SendRoute& send_route,
    const kernels::ReceiveRoute& receive_route, ffi::Result<ffi::AnyBuffer>& out, ffi::ResultBuffer<ffi::F32>& dots);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_MOE_ARGUMENTS_H_
