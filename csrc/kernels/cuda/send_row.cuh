// A token's row into all messages that it goes to, by a block of kSendThreads.
#ifndef JAX_FABRIC_KERNELS_CUDA_SEND_ROW_CUH_
#define JAX_FABRIC_KERNELS_CUDA_SEND_ROW_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/places.cuh"
#include "csrc/kernels/cuda/quantised_batch.cuh"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/cuda/row_moves.cuh"

namespace jax_fabric::kernels::cuda {

template <int kCount, int kElementBytes>
__device__ __forceinline__ void SendBits(const Places& places, const char* from, int64_t hidden) {
#pragma unroll 1
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; at < hidden; at += kSendThreads * kCount) {
    RawElements<kCount, kElementBytes> raw;
    raw.Load(from + at * kElementBytes);
#pragma unroll 1
    for (int i = 0; i < places.count; ++i) raw.Store(places.rows[i] + at * kElementBytes);
  }
}

template <int kCount>
__device__ __forceinline__ void SendConverted(const Places& places, ElementType to_type, const void* from,
                                              ElementType from_type, int64_t hidden) {
  const AnyType target{to_type}, source{from_type};
#pragma unroll 1
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; at < hidden; at += kSendThreads * kCount) {
    const Floats<kCount> floats = source.Load<kCount>(from, at);
#pragma unroll 1
    for (int i = 0; i < places.count; ++i) target.Store<kCount>(places.rows[i], at, floats);
  }
}

template <int kCount, typename Source>
__device__ __forceinline__ void SendQuantised(const Places& places, const RowFormat& format, const void* from,
                                              Source source) {
  using Batch = QuantisedBatch<kCount, Source, 2>;
#pragma unroll 1
  for (int32_t first = 0; first < static_cast<int32_t>(format.scale_count); first += Batch::kBlocks) {
    Batch batch;
    batch.Load(format, source, from, first);
    batch.Send(format, source, places, first);
  }
}

template <int kCount>
__device__ __forceinline__ void SendRow(const RowFormat& format, const RowSource& source, const Places& places,
                                        int64_t t) {
  const int64_t hidden = format.hidden;
  const auto* x = static_cast<const char*>(source.x) + t * hidden * ElementBytes(source.type);
  if (format.quantised && source.type != format.type) {
    if (source.type == ElementType::kBfloat16) {
      SendQuantised<kCount>(places, format, x, StaticType<ElementType::kBfloat16>());
    } else {
      SendQuantised<kCount>(places, format, x, AnyType{source.type});
    }
  } else if (source.type != format.type) {
    SendConverted<kCount>(places, format.type, x, source.type, hidden);
  } else if (ElementBytes(source.type) == 4) {
    SendBits<kCount, 4>(places, x, hidden);
  } else if (ElementBytes(source.type) == 2) {
    SendBits<kCount, 2>(places, x, hidden);
  } else {
    SendBits<kCount, 1>(places, x, hidden);
  }
}

// What a message holds besides the elements of a row; a warp for each place.
__device__ __forceinline__ void SendRest(const RowFormat& format, const RowSource& source, const Places& places,
                                         int64_t t) {
  const auto element_bytes = static_cast<int32_t>(format.hidden * ElementBytes(format.type));
  const auto stride = static_cast<int32_t>(format.stride);
  const auto scales_offset = static_cast<int32_t>(format.quantised ? format.scales_offset : stride);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
#pragma unroll 1
  for (int32_t i = threadIdx.x / kWarp; i < places.count; i += kSendThreads / kWarp) {
    ZeroRowPadding(places.rows[i], element_bytes, scales_offset, lane, kWarp);
    if (!format.quantised) continue;
    const auto scale_count = static_cast<int32_t>(format.scale_count);
    ZeroRowPadding(places.rows[i], scales_offset + 4 * scale_count, stride, lane, kWarp);
    if (source.type != format.type) continue;
    auto* scales = At<float>(places.rows[i], scales_offset);
#pragma unroll 1
    for (int32_t s = lane; s < scale_count; s += kWarp) scales[s] = source.scales[t * scale_count + s];
  }
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_SEND_ROW_CUH_
