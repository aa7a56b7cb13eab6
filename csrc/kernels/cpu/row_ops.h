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

// What a row is the sum of. Bounded, so that the arrays can lie on the stack; longer sums go on from `start`.
struct Terms {
  static constexpr int64_t kMost = 16;

  const void* rows[kMost];  // none of them overlaps the sum
  float scales[kMost];      // not looked at unless `scaled`
  int64_t count = 0;
  bool scaled = false;
  const float* start = nullptr;  // the sum so far (it may be where the new one goes), or null: then count is not 0
};

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// Tables are indexed by ElementType.
struct RowOps {
  // to = start + scales[0] * rows[0] + scales[1] * rows[1] + ..., from left to right, each product and each sum rounded
  // to float32, and at last to the type of `to`. Every element stays in a register from its first term to its last.
  using SumFn = void (*)(void* to, const Terms& terms, int64_t n, bool streamed);
  // lanes += a * b
  using DotFn = void (*)(float lanes[kDotLanes], const float* a, const float* b, int64_t n);
  // The largest magnitude of n finite elements; others do not count. 0 if there is none.
  using LargestFn = float (*)(const void* from, int64_t n);
  using CopyFn = void (*)(void* to, const void* from, int64_t bytes);

  SumFn sum[4][4];  // [type of the rows][type of `to`]
  LargestFn largest[4];
  CopyFn copy_streamed;
  DotFn dot;
  // `streamed` stores go past the caches (where `to` is aligned to 64 bytes, and the machine can): for what nobody
  // reads before it would have left them again. Such stores are not ordered by a later release store: call this before
  // telling another thread of them.
  void (*finish_streamed)();
};

// The best variant this machine can run; chosen once. (Not by ifunc: its resolvers run before sanitizers start.)
const RowOps& GetRowOps();

// One variant, or null if this build or this machine lacks it.
const RowOps* RowOpsFor(InstructionSet set);

// The sum of the partial sums, pairwise; clobbers them.
float SumLanes(float lanes[kDotLanes]);

// One row of `hidden` elements from one type to another; the same type is copied bit by bit. No overlap.
void ConvertRow(const RowOps& ops, void* to, ElementType to_type, const void* from, ElementType from_type,
                int64_t hidden, bool streamed = false);

// One row as the sum of `count` others: visit_terms(visit) calls visit(row, scale) for each of them, always in the same
// order. `scaled`: scales are not all 1.
template <typename VisitTerms>
void SumRow(const RowOps& ops, void* to, ElementType to_type, ElementType from_type, int64_t hidden, int64_t count,
            bool scaled, bool streamed, VisitTerms visit_terms);

// Where element `index` of an array lies.
inline char* ElementAt(void* array, ElementType type, int64_t index) {
  return static_cast<char*>(array) + index * ElementBytes(type);
}
inline const char* ElementAt(const void* array, ElementType type, int64_t index) {
  return static_cast<const char*>(array) + index * ElementBytes(type);
}

template <typename VisitTerms>
void SumRow(const RowOps& ops, void* to, ElementType to_type, ElementType from_type, int64_t hidden, int64_t count,
            bool scaled, bool streamed, VisitTerms visit_terms) {
  const RowOps::SumFn(&sums)[4] = ops.sum[static_cast<int>(from_type)];
  float sum_so_far[kChunk];  // used only where there are many terms
  const int64_t step = count <= Terms::kMost ? hidden : kChunk;
  for (int64_t begin = 0; begin < hidden; begin += step) {
    const int64_t n = hidden - begin < step ? hidden - begin : step;
    Terms terms;
    terms.scaled = scaled;
    visit_terms([&](const void* row, float scale) {
      if (terms.count == Terms::kMost) {
        sums[static_cast<int>(ElementType::kFloat32)](sum_so_far, terms, n, false);
        terms.start = sum_so_far;
        terms.count = 0;
      }
      terms.rows[terms.count] = ElementAt(row, from_type, begin);
      terms.scales[terms.count++] = scale;
    });
    sums[static_cast<int>(to_type)](ElementAt(to, to_type, begin), terms, n, streamed);
  }
}

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_CPU_ROW_OPS_H_
