// Whole rows by a group of threads: moved, converted, quantised, summed. `thread` of `threads` takes every threads-th
// piece of kCount elements; a group is a number of whole warps.
#ifndef JAX_FABRIC_KERNELS_CUDA_ROW_MOVES_CUH_
#define JAX_FABRIC_KERNELS_CUDA_ROW_MOVES_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

// Loads of a thread that are under way at once, as far as a row is long enough: so many, and so many bytes.
inline constexpr int kMostInFlight = 8;
inline constexpr int kInFlightBytes = 128;

// The same type: bit by bit.
template <int kCount, int kElementBytes>
__device__ __forceinline__ void CopyElements(char* to, const char* from, int32_t hidden, int thread, int threads) {
  constexpr int32_t kBytes = kCount * kElementBytes;
  constexpr int kInFlight = kInFlightBytes / kBytes < kMostInFlight ? kInFlightBytes / kBytes : kMostInFlight;
  using Raw = RawElements<kCount, kElementBytes>;
  const int32_t step = threads * kBytes;
  int32_t left = hidden * kElementBytes - thread * kBytes;
  to += thread * kBytes;
  from += thread * kBytes;
#pragma unroll 1
  for (; left > 0; left -= kInFlight * step, to += kInFlight * step, from += kInFlight * step) {
    // Without values, the compiler keeps what the iteration before has left: in four times the registers.
    Raw raw[kInFlight] = {};
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (i * step < left) raw[i].Load(from + i * step);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (i * step < left) raw[i].Store(to + i * step);
    }
  }
}

template <int kCount>
__device__ __forceinline__ void CopyRow(char* to, const char* from, ElementType type, int32_t hidden, int thread,
                                        int threads) {
  switch (ElementBytes(type)) {
    case 4:
      return CopyElements<kCount, 4>(to, from, hidden, thread, threads);
    case 2:
      return CopyElements<kCount, 2>(to, from, hidden, thread, threads);
    default:
      // Rows of bytes may be aligned to 16 as well.
      if (kCount == 8 && hidden % 16 == 0) return CopyElements<2 * kCount, 1>(to, from, hidden, thread, threads);
      return CopyElements<kCount, 1>(to, from, hidden, thread, threads);
  }
}

template <int kCount>
__device__ __forceinline__ void ConvertRow(char* to, ElementType to_type, const char* from, ElementType from_type,
                                           int32_t hidden, int thread, int threads) {
  if (to_type == from_type) return CopyRow<kCount>(to, from, to_type, hidden, thread, threads);
  const AnyType target{to_type}, source{from_type};
#pragma unroll 1
  for (int64_t at = static_cast<int64_t>(thread) * kCount; at < hidden; at += static_cast<int64_t>(threads) * kCount) {
    target.Store<kCount>(to, at, source.Load<kCount>(from, at));
  }
}

// What lies between a row's elements and its end: bytes [begin, end).
__device__ __forceinline__ void ZeroRowPadding(void* row, int32_t begin, int32_t end, int thread, int threads) {
#pragma unroll 1
  for (int32_t at = begin + thread; at < end; at += threads) *At<char>(row, at) = 0;
}

// ---- float8_e4m3fn with scales, as csrc/kernels/cpu/quantise.cc -----------------------------------------------------

inline constexpr float kLargestFloat8 = 448.0f;
inline constexpr float kLeastMagnitude = 1e-4f;

inline constexpr float kLargestFloat32 = 3.402823466e38f;

// The larger of two magnitudes; NaN if one of them is.
__device__ __forceinline__ float LargerOrNan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// The largest of kCount magnitudes.
template <int kCount>
__device__ __forceinline__ float LargestOrNan(const Floats<kCount>& floats) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest = LargerOrNan(largest, fabsf(floats.value[i]));
  return largest;
}

// The scale of a block and its inverse.
struct BlockScale {
  float scale;
  float inverse;

  explicit __device__ __forceinline__ BlockScale(float largest) {
    const float bounded = fmaxf(largest, kLeastMagnitude);
    scale = bounded * (1.0f / kLargestFloat8);
    inverse = __fdiv_rn(kLargestFloat8, bounded);
  }
};

// Finite elements of a block with that inverse. Float8 is a parameter since not every chip's codec has EncodeFour.
template <int kCount, typename Float8 = StaticType<ElementType::kFloat8E4m3fn>>
__device__ __forceinline__ RawElements<kCount, 1> Quantise(const Floats<kCount>& floats, float inverse) {
  Floats<kCount> scaled;
#pragma unroll
  for (int i = 0; i < kCount; ++i) scaled.value[i] = floats.value[i] * inverse;
  if constexpr (kCount % 4 == 0 && requires { &Float8::Codec::EncodeFour; }) {
    RawElements<kCount, 1> raw;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      reinterpret_cast<uint32_t*>(&raw)[i / 4] = Float8::Codec::EncodeFour(scaled.value + i);
    }
    return raw;
  } else {
    return Float8::template Encode<kCount>(scaled);
  }
}

template <int kCount>
__device__ __forceinline__ void DequantiseRow(void* to, ElementType to_type, const void* from, const float* scales,
                                              int64_t hidden, int thread, int threads) {
  const AnyType target{to_type};
  const StaticType<ElementType::kFloat8E4m3fn> source;
#pragma unroll 1
  for (int64_t at = static_cast<int64_t>(thread) * kCount; at < hidden; at += static_cast<int64_t>(threads) * kCount) {
    // A block is a multiple of kCount.
    const float scale = scales[at / kScaleBlock];
    Floats<kCount> floats = source.Load<kCount>(from, at);
#pragma unroll
    for (int i = 0; i < kCount; ++i) floats.value[i] *= scale;
    target.Store<kCount>(to, at, floats);
  }
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_ROW_MOVES_CUH_
