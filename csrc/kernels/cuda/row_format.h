// How rows stand in messages, and where they come from.
#ifndef JAX_FABRIC_KERNELS_CUDA_ROW_FORMAT_H_
#define JAX_FABRIC_KERNELS_CUDA_ROW_FORMAT_H_

#include <cstdint>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

// In the messages of one kind of exchange.
struct RowFormat {
  explicit RowFormat(const SlotLayout& layout, ExchangeKind kind)
      : hidden(layout.shape.hidden),
        type(kind == ExchangeKind::kDispatch ? layout.dispatch_type : layout.redispatch_type),
        stride(kind == ExchangeKind::kDispatch ? layout.DispatchRowBytes() : layout.RedispatchRowBytes()),
        quantised(kind == ExchangeKind::kDispatch && layout.quantised),
        scales_offset(layout.ScalesOffset()),
        scale_count(layout.ScalesOfRow()) {}

  int64_t hidden;
  ElementType type;
  int64_t stride;  // bytes from one row to the next
  bool quantised;
  int64_t scales_offset;
  int64_t scale_count;
};

// x of a dispatch or redispatch.
struct RowSource {
  ElementType type = ElementType::kFloat32;
  const void* x = nullptr;
  const float* scales = nullptr;  // of x that is quantised already
};

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_ROW_FORMAT_H_
