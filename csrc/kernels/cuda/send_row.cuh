// A token's row into all messages that it goes to, by a block of kSendThreads.
#ifndef JAX_FABRIC_KERNELS_CUDA_SEND_ROW_CUH_
#define JAX_FABRIC_KERNELS_CUDA_SEND_ROW_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/cuda/row_moves.cuh"

namespace jax_fabric::kernels::cuda {

// Of the blocks that send rows.
inline constexpr int kSendThreads = 512;

// Where the row of one token goes: `count` places in messages.
struct Places {
  char* const* rows;
  int count;
};

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

// Some blocks of a row that is quantised on its way: read now, sent later. A block by as many threads as have kCount of
// its elements each.
template <int kCount, typename Source>
class QuantisedBatch {
  static constexpr int kGroup = kScaleBlock / kCount < kWarp ? kScaleBlock / kCount : kWarp;
  static constexpr int kPieces = kScaleBlock / (kGroup * kCount);  // of a block, for each thread
  static constexpr int kGroups = kSendThreads / kGroup;
  static constexpr int kBlocksAtOnce = 2;  // of each thread

 public:
  static constexpr int64_t kBlocks = kGroups * kBlocksAtOnce;

  // Blocks [first, first + kBlocks) of the row at `from`, as far as there are so many.
  __device__ __forceinline__ void Load(const RowFormat& format, Source source, const void* from, int64_t first) {
#pragma unroll
    for (int b = 0; b < kBlocksAtOnce; ++b) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int64_t at = Element(Block(first, b), i);
        if (at < format.hidden) loaded_[b][i] = source.template Fetch<kCount>(from, at);
      }
    }
  }

  // By all threads of the block: those of a group exchange what they have.
  __device__ __forceinline__ void Send(const RowFormat& format, Source source, const Places& places,
                                       int64_t first) const {
#pragma unroll
    for (int b = 0; b < kBlocksAtOnce; ++b) {
      const int64_t block = Block(first, b);
      Floats<kCount> floats[kPieces];
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (Element(block, i) >= format.hidden) continue;
        floats[i] = source.template ToFloats<kCount>(loaded_[b][i]);
        largest = fmaxf(largest, LargestMagnitude(floats[i]));
      }
      const BlockScale scale(LargestOf(largest, kGroup));
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int64_t at = Element(block, i);
        if (at >= format.hidden) continue;
        const auto raw = Quantise(floats[i], scale.inverse);
#pragma unroll 1
        for (int place = 0; place < places.count; ++place) raw.Store(places.rows[place] + at);
      }
      if (threadIdx.x % kGroup != 0 || block >= format.scale_count) continue;
#pragma unroll 1
      for (int place = 0; place < places.count; ++place) {
        At<float>(places.rows[place], format.scales_offset)[block] = scale.scale;
      }
    }
  }

 private:
  static __device__ __forceinline__ int64_t Block(int64_t first, int b) {
    return first + threadIdx.x / kGroup + b * kGroups;
  }
  static __device__ __forceinline__ int64_t Element(int64_t block, int piece) {
    return block * kScaleBlock + (piece * kGroup + threadIdx.x % kGroup) * kCount;
  }

  typename Source::template Loaded<kCount> loaded_[kBlocksAtOnce][kPieces];
};

template <int kCount, typename Source>
__device__ __forceinline__ void SendQuantised(const Places& places, const RowFormat& format, const void* from,
                                              Source source) {
  using Batch = QuantisedBatch<kCount, Source>;
#pragma unroll 1
  for (int64_t first = 0; first < format.scale_count; first += Batch::kBlocks) {
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
