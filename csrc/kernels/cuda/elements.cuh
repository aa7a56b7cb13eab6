// Elements of rows: loads, stores and conversions, one or eight at a time.
//
// The values are those of csrc/kernels/float_types.h, bit by bit but for the payload of NaN: the hardware's conversions
// where the chip has them.
#ifndef JAX_FABRIC_KERNELS_CUDA_ELEMENTS_CUH_
#define JAX_FABRIC_KERNELS_CUDA_ELEMENTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "csrc/kernels/float_types.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

// ---- One element ---------------------------------------------------------------------------------------------------

// What a type's codec is; those of the device take the hardware's way.
template <ElementType kType>
struct DeviceCodec;
template <>
struct DeviceCodec<ElementType::kFloat32> : Float32Codec {};
template <>
struct DeviceCodec<ElementType::kBfloat16> : Bfloat16Codec {
  static __device__ __forceinline__ uint16_t Encode(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};
template <>
struct DeviceCodec<ElementType::kFloat16> : Float16Codec {
  static __device__ __forceinline__ float Decode(uint16_t value) { return __half2float(__ushort_as_half(value)); }
  static __device__ __forceinline__ uint16_t Encode(float value) { return __half_as_ushort(__float2half_rn(value)); }
};
template <>
struct DeviceCodec<ElementType::kFloat8E4m3fn> : Float8E4m3fnCodec {
#if __CUDA_ARCH__ >= 890
  static __device__ __forceinline__ float Decode(uint8_t value) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(value)));
    return __half2float(__ushort_as_half(static_cast<uint16_t>(halves)));
  }
  static __device__ __forceinline__ uint8_t Encode(float value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    // The instruction saturates, and we do not.
    const uint32_t sign = (FloatBits(value) >> 24) & 0x80u;
    return static_cast<uint8_t>(fabsf(value) <= 464.0f ? pair : sign | 0x7fu);
  }
  // Of values that do not saturate, the first one in the lowest byte.
  static __device__ __forceinline__ uint32_t EncodeFour(const float* values) {
    uint32_t four;
    asm("{\n\t.reg .b16 low, high;\n\t"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n\t"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n\t"
        "mov.b32 %0, {low, high};\n\t}"
        : "=r"(four)
        : "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]));
    return four;
  }
#endif
};

// ---- Elements of a type that is known at compile time --------------------------------------------------------------

// As many bytes as an instruction can move; `kBytes` is a power of two, and so is the alignment.
template <int kBytes>
struct Word;
template <>
struct Word<1> {
  using Type = uint8_t;
};
template <>
struct Word<2> {
  using Type = uint16_t;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};

// The bits of `kCount` elements of so many bytes each, in the registers of one thread.
template <int kCount, int kElementBytes>
struct alignas(kCount* kElementBytes < 16 ? kCount * kElementBytes : 16) RawElements {
  static constexpr int kBytes = kCount * kElementBytes;
  static constexpr int kStep = kBytes < 16 ? kBytes : 16;
  using Piece = typename Word<kStep>::Type;
  Piece pieces[kBytes / kStep];

  __device__ __forceinline__ void Load(const void* from) {
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) pieces[i] = static_cast<const Piece*>(from)[i];
  }
  __device__ __forceinline__ void Store(void* to) const {
#pragma unroll
    for (int i = 0; i < kBytes / kStep; ++i) static_cast<Piece*>(to)[i] = pieces[i];
  }
};

template <int kCount>
struct Floats {
  float value[kCount];
};

// Arrays whose type is known when the kernel is compiled.
template <ElementType kType>
struct StaticType {
  static constexpr int kElementBytes = static_cast<int>(ElementBytes(kType));
  using Codec = DeviceCodec<kType>;
  template <int kCount>
  using Raw = RawElements<kCount, kElementBytes>;

  // What a thread keeps of elements that it has loaded and not yet looked at.
  template <int kCount>
  using Loaded = Raw<kCount>;

  template <int kCount>
  static __device__ __forceinline__ Floats<kCount> Decode(const Raw<kCount>& raw) {
    const auto* stored = reinterpret_cast<const typename Codec::Storage*>(&raw);
    Floats<kCount> floats;
#pragma unroll
    for (int i = 0; i < kCount; ++i) floats.value[i] = Codec::Decode(stored[i]);
    return floats;
  }
  template <int kCount>
  static __device__ __forceinline__ Raw<kCount> Encode(const Floats<kCount>& floats) {
    Raw<kCount> raw;
    auto* stored = reinterpret_cast<typename Codec::Storage*>(&raw);
#pragma unroll
    for (int i = 0; i < kCount; ++i) stored[i] = Codec::Encode(floats.value[i]);
    return raw;
  }

  template <int kCount>
  __device__ __forceinline__ Raw<kCount> Fetch(const void* row, int64_t element) const {
    Raw<kCount> raw;
    raw.Load(static_cast<const char*>(row) + element * kElementBytes);
    return raw;
  }
  template <int kCount>
  __device__ __forceinline__ Floats<kCount> ToFloats(const Raw<kCount>& raw) const {
    return Decode<kCount>(raw);
  }
  template <int kCount>
  __device__ __forceinline__ Floats<kCount> Load(const void* row, int64_t element) const {
    return Decode<kCount>(Fetch<kCount>(row, element));
  }
  template <int kCount>
  __device__ __forceinline__ void Store(void* row, int64_t element, const Floats<kCount>& floats) const {
    Encode<kCount>(floats).Store(static_cast<char*>(row) + element * kElementBytes);
  }
};

// ---- Elements of a type that is known at run time ------------------------------------------------------------------

// Slower, and one copy of the code for all types.
struct AnyType {
  ElementType type;

  template <int kCount>
  using Loaded = Floats<kCount>;

  template <int kCount>
  __device__ __forceinline__ Floats<kCount> Fetch(const void* row, int64_t element) const {
    return Load<kCount>(row, element);
  }
  template <int kCount>
  __device__ __forceinline__ Floats<kCount> ToFloats(const Floats<kCount>& floats) const {
    return floats;
  }

  template <int kCount>
  __device__ __forceinline__ Floats<kCount> Load(const void* row, int64_t element) const {
    switch (type) {
      case ElementType::kFloat32:
        return StaticType<ElementType::kFloat32>().Load<kCount>(row, element);
      case ElementType::kBfloat16:
        return StaticType<ElementType::kBfloat16>().Load<kCount>(row, element);
      case ElementType::kFloat16:
        return StaticType<ElementType::kFloat16>().Load<kCount>(row, element);
      default:
        return StaticType<ElementType::kFloat8E4m3fn>().Load<kCount>(row, element);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void Store(void* row, int64_t element, const Floats<kCount>& floats) const {
    switch (type) {
      case ElementType::kFloat32:
        return StaticType<ElementType::kFloat32>().Store<kCount>(row, element, floats);
      case ElementType::kBfloat16:
        return StaticType<ElementType::kBfloat16>().Store<kCount>(row, element, floats);
      case ElementType::kFloat16:
        return StaticType<ElementType::kFloat16>().Store<kCount>(row, element, floats);
      default:
        return StaticType<ElementType::kFloat8E4m3fn>().Store<kCount>(row, element, floats);
    }
  }
};

// How many elements of a row a thread takes at once. Rows of H elements are aligned for all types where 8 divides H.
inline constexpr int kVector = 8;

inline __host__ __device__ bool IsVectorised(int64_t hidden) { return hidden % kVector == 0; }

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_ELEMENTS_CUH_
