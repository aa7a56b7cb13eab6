#include "csrc/kernels/cpu/row_ops.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "csrc/kernels/float_types.h"
#include "csrc/kernels/moe_layout.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define JF_HAVE_X86_VARIANTS 1
#else
#define JF_HAVE_X86_VARIANTS 0
#endif

// Options of this file (BUILD.bazel):
//   -O2                   In debug builds, too: nobody steps through these, and everything else would wait for them.
//   -ffp-contract=off     A fused multiply-add in one variant only would give different sums on different machines.
//   -fno-trapping-math    Else GCC may not compute both sides of a selection, and leaves the conversions scalar.

namespace jax_fabric::kernels {
namespace {

namespace baseline {
#define JF_TARGET
#define JF_USE_AVX 0
#include "csrc/kernels/cpu/row_ops_loops.inc"
#undef JF_TARGET
#undef JF_USE_AVX
}  // namespace baseline

#if JF_HAVE_X86_VARIANTS

namespace avx2 {
#define JF_TARGET __attribute__((target("avx2,f16c")))
#define JF_USE_AVX 1
#include "csrc/kernels/cpu/row_ops_loops.inc"
#undef JF_TARGET
#undef JF_USE_AVX
}  // namespace avx2

namespace avx512 {
#define JF_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")))
#define JF_USE_AVX 1
#include "csrc/kernels/cpu/row_ops_loops.inc"
#undef JF_TARGET
#undef JF_USE_AVX
}  // namespace avx512

#endif  // JF_HAVE_X86_VARIANTS

const RowOps& BestRowOps() {
  if (const RowOps* ops = RowOpsFor(InstructionSet::kAvx512)) return *ops;
  if (const RowOps* ops = RowOpsFor(InstructionSet::kAvx2)) return *ops;
  return baseline::kRowOps;
}

}  // namespace

const RowOps* RowOpsFor(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline:
      return &baseline::kRowOps;
#if JF_HAVE_X86_VARIANTS
    // These look at what the operating system saves, too. Every CPU with AVX2 has F16C.
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") ? &avx2::kRowOps : nullptr;
    case InstructionSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                 ? &avx512::kRowOps
                 : nullptr;
#endif
    default:
      return nullptr;
  }
}

const RowOps& GetRowOps() {
  static const RowOps& ops = BestRowOps();
  return ops;
}

float SumLanes(float lanes[kDotLanes]) {
  for (int64_t width = kDotLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

void ConvertRow(const RowOps& ops, void* to, ElementType to_type, const void* from, ElementType from_type,
                int64_t hidden, bool streamed) {
  if (to_type == from_type) {
    const int64_t bytes = hidden * ElementBytes(to_type);
    if (streamed) return ops.copy_streamed(to, from, bytes);
    std::memcpy(to, from, bytes);
    return;
  }
  Terms terms;
  terms.rows[0] = from;
  terms.count = 1;
  ops.sum[static_cast<int>(from_type)][static_cast<int>(to_type)](to, terms, hidden, streamed);
}

}  // namespace jax_fabric::kernels
