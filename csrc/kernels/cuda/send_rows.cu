#include <cstdint>

#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/row_moves.cuh"
#include "csrc/kernels/cuda/send_rows.cuh"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Where the row of one token goes: `count` places in messages.
struct Places {
  char* const* rows;
  int count;
};

// By the first warp of the block. There is room for a place in each message.
__device__ int FindPlaces(const SendRowsArgs& args, int64_t t, char** rows) {
  const int lane = threadIdx.x;
  int count = 0;
  for (int64_t base = 0; base < args.shape.ranks; base += kWarp) {
    const int64_t rank = base + lane;
    int64_t row = -1;
    if (rank < args.shape.ranks) {
      row = IndexBelow(args.route.index[t * args.shape.ranks + rank], args.shape.max_tokens);
      if (row >= 0 && args.first_rows != nullptr) row -= args.first_rows[rank];
    }
    const bool goes = row >= 0 && row < args.shape.MessageRows();
    const uint32_t going = __ballot_sync(0xffffffffu, goes);
    if (goes) {
      const int64_t payload = args.payload_offsets != nullptr ? args.payload_offsets[rank] : args.plain_payload_offset;
      rows[count + __popc(going & ((1u << lane) - 1))] = At<char>(args.slots[rank], payload + row * args.format.stride);
    }
    count += __popc(going);
  }
  return count;
}

template <int kCount, int kElementBytes>
__device__ void SendBits(const Places& places, const char* from, int64_t hidden) {
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; at < hidden; at += kThreads * kCount) {
    RawElements<kCount, kElementBytes> raw;
    raw.Load(from + at * kElementBytes);
    for (int i = 0; i < places.count; ++i) raw.Store(places.rows[i] + at * kElementBytes);
  }
}

template <int kCount>
__device__ void SendConverted(const Places& places, ElementType to_type, const void* from, ElementType from_type,
                              int64_t hidden) {
  const AnyType target{to_type}, source{from_type};
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kCount; at < hidden; at += kThreads * kCount) {
    const Floats<kCount> floats = source.Load<kCount>(from, at);
    for (int i = 0; i < places.count; ++i) target.Store<kCount>(places.rows[i], at, floats);
  }
}

// A block of a quantised row by as many threads as have kCount of its elements each.
template <int kCount, typename Source>
__device__ void SendQuantised(const Places& places, const RowFormat& format, const void* from, Source source) {
  constexpr int kGroup = kScaleBlock / kCount < kWarp ? kScaleBlock / kCount : kWarp;
  constexpr int kPieces = kScaleBlock / (kGroup * kCount);  // of a block, for each thread
  constexpr int kGroups = kThreads / kGroup;
  const int member = threadIdx.x % kGroup;
  // All threads of a warp stay together: they exchange what they have.
  const int64_t blocks = AlignUp(format.scale_count, kGroups);
  for (int64_t block = threadIdx.x / kGroup; block < blocks; block += kGroups) {
    Floats<kCount> floats[kPieces];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t at = block * kScaleBlock + (i * kGroup + member) * kCount;
      if (at >= format.hidden) continue;
      floats[i] = source.template Load<kCount>(from, at);
      largest = fmaxf(largest, LargestMagnitude(floats[i]));
    }
    const BlockScale scale(LargestOf(largest, kGroup));
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t at = block * kScaleBlock + (i * kGroup + member) * kCount;
      if (at >= format.hidden) continue;
      const auto raw = Quantise(floats[i], scale.inverse);
      for (int place = 0; place < places.count; ++place) raw.Store(places.rows[place] + at);
    }
    if (member != 0 || block >= format.scale_count) continue;
    for (int place = 0; place < places.count; ++place) {
      At<float>(places.rows[place], format.scales_offset)[block] = scale.scale;
    }
  }
}

template <int kCount>
__device__ void SendRow(const SendRowsArgs& args, const Places& places, int64_t t) {
  const RowFormat& format = args.format;
  const int64_t hidden = format.hidden;
  const auto* x = static_cast<const char*>(args.x) + t * hidden * ElementBytes(args.x_type);
  if (format.quantised && args.x_type != format.type) {
    if (args.x_type == ElementType::kBfloat16) {
      SendQuantised<kCount>(places, format, x, StaticType<ElementType::kBfloat16>());
    } else {
      SendQuantised<kCount>(places, format, x, AnyType{args.x_type});
    }
  } else if (args.x_type != format.type) {
    SendConverted<kCount>(places, format.type, x, args.x_type, hidden);
  } else if (ElementBytes(args.x_type) == 4) {
    SendBits<kCount, 4>(places, x, hidden);
  } else if (ElementBytes(args.x_type) == 2) {
    SendBits<kCount, 2>(places, x, hidden);
  } else {
    SendBits<kCount, 1>(places, x, hidden);
  }
}

// What a message holds besides the elements of a row.
__device__ void SendRest(const SendRowsArgs& args, const Places& places, int64_t t) {
  const RowFormat& format = args.format;
  const int64_t element_bytes = format.hidden * ElementBytes(format.type);
  for (int i = 0; i < places.count; ++i) {
    if (!format.quantised) {
      ZeroRowPadding(places.rows[i], element_bytes, format.stride, threadIdx.x, kThreads);
      continue;
    }
    ZeroRowPadding(places.rows[i], element_bytes, format.scales_offset, threadIdx.x, kThreads);
    ZeroRowPadding(places.rows[i], format.scales_offset + 4 * format.scale_count, format.stride, threadIdx.x, kThreads);
    if (args.x_type != format.type) continue;
    auto* scales = At<float>(places.rows[i], format.scales_offset);
    for (int64_t s = threadIdx.x; s < format.scale_count; s += kThreads) {
      scales[s] = args.scales[t * format.scale_count + s];
    }
  }
}

// A block for each token.
template <int kCount>
__global__ void __launch_bounds__(kThreads)
    SendRowsKernel(const __grid_constant__ SendRowsArgs args, KernelTimes* times) {
  const KernelTimer timer(times);
  extern __shared__ char* rows[];
  __shared__ int count;
  const IndexRange tokens = TokensInRound(args.shape, args.route, args.t_rows, args.round);
  const int64_t t = blockIdx.x;
  if (t < tokens.begin || t >= tokens.end) return;
  if (threadIdx.x < kWarp) {
    const int found = FindPlaces(args, t, rows);
    if (threadIdx.x == 0) count = found;
  }
  __syncthreads();
  const Places places{rows, count};
  if (count == 0) return;
  SendRow<kCount>(args, places, t);
  SendRest(args, places, t);
}

}  // namespace

cudaError_t LaunchSendRows(const SendRowsArgs& args, const LaunchOptions& options) {
  if (args.t_rows == 0) return cudaSuccess;
  const size_t shared_bytes = sizeof(char*) * args.shape.ranks;
  if (IsVectorised(args.format.hidden)) {
    SendRowsKernel<kVector><<<args.t_rows, kThreads, shared_bytes, options.stream>>>(args, options.times);
  } else {
    SendRowsKernel<1><<<args.t_rows, kThreads, shared_bytes, options.stream>>>(args, options.times);
  }
  return cudaGetLastError();
}

cudaError_t LoadSendRows() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, SendRowsKernel<kVector>);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, SendRowsKernel<1>);
}

}  // namespace jax_fabric::kernels::cuda
