// Blocks of a row that becomes float8_e4m3fn with scales on its way into messages: as csrc/kernels/cpu/quantise.cc.
#ifndef JAX_FABRIC_KERNELS_CUDA_QUANTISED_BATCH_CUH_
#define JAX_FABRIC_KERNELS_CUDA_QUANTISED_BATCH_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/places.cuh"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/cuda/row_moves.cuh"

namespace jax_fabric::kernels::cuda {

// Some blocks of a row that is quantised on its way: read now, sent later. A block by as many threads as have kCount of
// its elements each; kBlocksAtOnce of each thread.
template <int kCount, typename Source, int kBlocksAtOnce>
class QuantisedBatch {
  static constexpr int kGroup = kScaleBlock / kCount < kWarp ? kScaleBlock / kCount : kWarp;
  static constexpr int kPieces = kScaleBlock / (kGroup * kCount);  // of a block, for each thread
  static constexpr int kGroups = kSendThreads / kGroup;

 public:
  static constexpr int32_t kBlocks = kGroups * kBlocksAtOnce;

  // Blocks [first, first + kBlocks) of the row at `from`, as far as there are so many.
  __device__ __forceinline__ void Load(const RowFormat& format, Source source, const void* from, int32_t first) {
    const auto hidden = static_cast<int32_t>(format.hidden);
#pragma unroll
    for (int b = 0; b < kBlocksAtOnce; ++b) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        // Behind the end of the row its last elements again: they change no block's scale. With other values for what
        // is not loaded, the compiler unpacks elements here, and waits for them.
        const int32_t at = min(Element(Block(first, b), i), hidden - kCount);
        loaded_[b][i] = source.template Fetch<kCount>(from, at);
      }
    }
  }

  // By all threads of the block: those of a group exchange what they have.
  __device__ __forceinline__ void Send(const RowFormat& format, Source source, const Places& places,
                                       int32_t first) const {
    const auto hidden = static_cast<int32_t>(format.hidden), scale_count = static_cast<int32_t>(format.scale_count);
    RawElements<kCount, 1> quantised[kBlocksAtOnce][kPieces];
    float scales[kBlocksAtOnce];
#pragma unroll
    for (int b = 0; b < kBlocksAtOnce; ++b) scales[b] = QuantiseBlock(source, loaded_[b], quantised[b]);
    const bool has_scale = threadIdx.x % kGroup == 0;
#pragma unroll 1
    for (int place = 0; place < places.count; ++place) {
      char* row = places.rows[place];
      auto* row_scales = At<float>(row, format.scales_offset);
#pragma unroll
      for (int b = 0; b < kBlocksAtOnce; ++b) {
        const int32_t block = Block(first, b);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          if (Element(block, i) < hidden) quantised[b][i].Store(row + Element(block, i));
        }
        if (has_scale && block < scale_count) row_scales[block] = scales[b];
      }
    }
  }

 private:
  static __device__ __forceinline__ int32_t Block(int32_t first, int b) {
    return first + threadIdx.x / kGroup + b * kGroups;
  }
  static __device__ __forceinline__ int32_t Element(int32_t block, int piece) {
    return block * kScaleBlock + (piece * kGroup + threadIdx.x % kGroup) * kCount;
  }
  using Loaded = typename Source::template Loaded<kCount>;

  // By the threads of a group, which get the same answer.
  static __device__ __forceinline__ float LargestOfGroup(float largest, uint32_t group) {
#pragma unroll
    for (int i = kGroup / 2; i > 0; i /= 2) largest = LargerOrNan(largest, __shfl_xor_sync(group, largest, i));
    return largest;
  }

  // By the threads of a group. Returns the scale.
  static __device__ __forceinline__ float QuantiseBlock(Source source, const Loaded (&loaded)[kPieces],
                                                        RawElements<kCount, 1> (&quantised)[kPieces]) {
    Floats<kCount> floats[kPieces];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      floats[i] = source.template ToFloats<kCount>(loaded[i]);
      largest = LargerOrNan(largest, LargestOrNan(floats[i]));
    }
    largest = LargestOfGroup(largest, kAllLanes);
    if (!(largest <= kLargestFloat32)) {
      OddBlock odd;  // a copy: what a function that is not inlined is given lies in memory
#pragma unroll
      for (int i = 0; i < kPieces; ++i) odd.floats[i] = floats[i];
      const float scale = QuantiseOddBlock(odd);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) quantised[i] = odd.quantised[i];
      return scale;
    }
    const BlockScale scale(largest);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) quantised[i] = Quantise(floats[i], scale.inverse);
    return scale.scale;
  }

  // A block with numbers that are not finite, which have no part in the scale. Rare, and so not in the way of others.
  struct OddBlock {
    Floats<kCount> floats[kPieces];
    RawElements<kCount, 1> quantised[kPieces];
  };
  static __device__ __noinline__ float QuantiseOddBlock(OddBlock& block) {
    constexpr int kElements = kPieces * kCount;
    auto* floats = reinterpret_cast<const float*>(block.floats);
    auto* quantised = reinterpret_cast<uint8_t*>(block.quantised);
    float largest = 0;
#pragma unroll 1
    for (int i = 0; i < kElements; ++i) {
      if (fabsf(floats[i]) <= kLargestFloat32) largest = fmaxf(largest, fabsf(floats[i]));
    }
    const auto first_lane = static_cast<int>(threadIdx.x % kWarp) / kGroup * kGroup;
    const BlockScale scale(LargestOfGroup(largest, (kAllLanes >> (kWarp - kGroup)) << first_lane));
#pragma unroll 1
    for (int i = 0; i < kElements; ++i) {
      quantised[i] = DeviceCodec<ElementType::kFloat8E4m3fn>::Encode(floats[i] * scale.inverse);
    }
    return scale.scale;
  }

  Loaded loaded_[kBlocksAtOnce][kPieces];
};

// What is nearly always sent: bfloat16, quantised on its way, in rows that a block can hold. Kernels are made for it or
// for all other rows, since code that is jumped over takes time to be fetched.
using UsualSource = StaticType<ElementType::kBfloat16>;
inline constexpr int kUsualElements = 16;  // of each thread
using UsualRow = QuantisedBatch<kUsualElements, UsualSource, 1>;

inline bool IsUsualRow(const RowFormat& format, ElementType x_type) {
  return format.quantised && x_type == ElementType::kBfloat16 && format.hidden % kUsualElements == 0 &&
         format.scale_count <= UsualRow::kBlocks;
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_QUANTISED_BATCH_CUH_
