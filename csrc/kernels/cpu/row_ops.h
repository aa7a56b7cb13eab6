// Loops over the elements of a row: conversion and arithmetic in float32, compiled for several instruction sets.
//
// Every variant gives the same values: sums are not fused or reordered, and dot products have a fixed shape.
#ifndef JAX_FABRIC_KERNELS_CPU_ROW_OPS_H_
#define JAX_FABRIC_KERNELS_CPU_ROW_OPS_H_

#include <cstdint>

#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {

// Rows are worked on in pieces of this many elements, whose float32 form (2 KiB) stays in the first-level cache.
inline constexpr int64_t kChunk = 512;

// Element h of a dot product goes into partial sum h % kDotLanes. Divides kChunk.
inline constexpr int64_t kDotLanes = 32;

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// Tables are indexed by ElementType. `to` and `from` do not overlap.
struct RowOps {
  using LoadFn = void (*)(float* to, const void* from, int64_t n);
  using ScaledLoadFn = void (*)(float* to, const void* from, float scale, int64_t n);
  using StoreFn = void (*)(void* to, const float* from, int64_t n);

  LoadFn load[4];               // to = from
  LoadFn add[4];                // to += from
  ScaledLoadFn load_scaled[4];  // to = scale * from
  ScaledLoadFn add_scaled[4];   // to += scale * from, the product rounded before the sum
  StoreFn store[4];             // to = from
  void (*dot)(float lanes[kDotLanes], const float* a, const float* b, int64_t n);  // lanes += a * b
};

// The best variant this machine can run; chosen once. (Not by ifunc: its resolvers run before sanitizers start.)
const RowOps& GetRowOps();

// One variant, or null if this build or this machine lacks it.
const RowOps* RowOpsFor(InstructionSet set);

// The sum of the partial sums, pairwise; clobbers them.
float SumLanes(float lanes[kDotLanes]);

// One row of `hidden` elements from one type to another; the same type is copied bit by bit. No overlap.
void ConvertRow(const RowOps& ops, void* to, ElementType to_type, const void* from, ElementType from_type,
                int64_t hidden);

// Where element `index` of an array lies.
inline char* ElementAt(void* array, ElementType type, int64_t index) {
  return static_cast<char*>(array) + index * ElementBytes(type);
}
inline const char* ElementAt(const void* array, ElementType type, int64_t index) {
  return static_cast<const char*>(array) + index * ElementBytes(type);
}

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_CPU_ROW_OPS_H_
