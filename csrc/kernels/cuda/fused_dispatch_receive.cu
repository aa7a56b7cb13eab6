// DispatchReceive in one launch: blocks of a source find out where its rows go from the messages' own counts.
#include <algorithm>
#include <cstdint>

#include "csrc/kernels/cuda/block_scan.cuh"
#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/fused_dispatch.h"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/receive_row.cuh"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr uint32_t kAllLanes = 0xffffffffu;
// A row's entries are found among those of all rows before it, which must be few.
constexpr int32_t kMostTokens = 256;
constexpr int64_t kMostSharedBytes = 40 << 10;
// Blocks without a message, for each batch of parts.
constexpr int32_t kPaddingBlocks = 1;
// Of a row, what a warp moves at once: so many pieces of 16 bytes for each lane.
constexpr int32_t kPieces = 4;
constexpr int64_t kPartBytes = kPieces * kWarp * 16;

// In shared memory.
struct SharedBegins {
  int32_t* counts;  // [N, experts_per_rank] rows of each source for each expert
  int32_t* before;  // [experts_per_rank] rows of an expert from sources before this block's
  int32_t* totals;  // [experts_per_rank] rows of an expert from all sources
  int32_t* begins;  // [experts_per_rank] position of the expert's first row
  int64_t bytes;

  __host__ __device__ SharedBegins(char* base, const MoeShape& shape) {
    const int64_t experts = shape.experts_per_rank;
    counts = reinterpret_cast<int32_t*>(base);
    before = counts + shape.ranks * experts;
    totals = before + experts;
    begins = totals + experts;
    bytes = 4 * (shape.ranks * experts + 3 * experts);
  }
};

// By the block. Returns how many rows there are.
__device__ int32_t FindBegins(const DispatchReceiveArgs& args, const ReceiveSlots& slots, const SharedBegins& shared,
                              int32_t source) {
  const MoeShape& shape = args.layout.shape;
  const int32_t experts = shape.experts_per_rank;
  for (int32_t i = threadIdx.x; i < shape.ranks * experts; i += kRowThreads) {
    shared.counts[i] =
        static_cast<int32_t>(At<uint32_t>(slots[i / experts], args.layout.LocalRowsOffset())[i % experts]);
  }
  __syncthreads();
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  for (int32_t expert = threadIdx.x / kWarp; expert < experts; expert += kRowWarps) {
    int32_t before = 0, total = 0;
    for (int32_t s = lane; s < shape.ranks; s += kWarp) {
      const int32_t count = shared.counts[s * experts + expert];
      total += count;
      if (s < source) before += count;
    }
    before = __reduce_add_sync(kAllLanes, before);
    total = __reduce_add_sync(kAllLanes, total);
    if (lane == 0) shared.before[expert] = before, shared.totals[expert] = total;
  }
  __syncthreads();
  int32_t so_far = 0;
  for (int32_t base = 0; base < experts; base += kRowThreads) {
    const int32_t expert = base + static_cast<int32_t>(threadIdx.x);
    const PairScan scan = ScanBlock<kRowThreads>({expert < experts ? shared.totals[expert] : 0, 0});
    if (expert < experts) shared.begins[expert] = so_far + scan.before.a;
    so_far += scan.total.a;
  }
  __syncthreads();
  return so_far;
}

// By one block of the launch.
__device__ void WriteSizes(const DispatchReceiveArgs& args, const SharedBegins& shared, int32_t total) {
  const MoeShape& shape = args.layout.shape;
  for (int32_t expert = threadIdx.x; expert < shape.experts_per_rank; expert += kRowThreads) {
    const int64_t begin = shared.begins[expert], end = begin + shared.totals[expert];
    args.group_sizes[expert] = static_cast<int32_t>((end < shape.capacity ? end : shape.capacity) -
                                                    (begin < shape.capacity ? begin : shape.capacity));
  }
  if (threadIdx.x == 0 && args.dropped != nullptr) {
    args.dropped[0] = total > shape.capacity ? static_cast<int32_t>(total - shape.capacity) : 0;
  }
}

// What no row goes to, by all threads of the blocks that have no message.
__device__ void Pad(const DispatchReceiveArgs& args, int64_t used, int64_t thread, int64_t threads) {
  const MoeShape& shape = args.layout.shape;
  const int64_t row_bytes = shape.hidden * ElementBytes(args.tokens_type);
  const int64_t scale_count = args.layout.ScalesOfRow();
  for (int64_t c = used + thread; c < shape.capacity; c += threads) args.weights[c] = 0.0f;
  if (!args.zero_padding) return;
  ZeroBytes(args.tokens, used * row_bytes, shape.capacity * row_bytes, thread, threads);
  if (args.scales == nullptr || !args.layout.quantised) return;
  for (int64_t i = used * scale_count + thread; i < shape.capacity * scale_count; i += threads) args.scales[i] = 0.0f;
}

// Pieces of a row, whatever their type, in a warp's registers.
struct RowPieces {
  uint4 pieces[kPieces];

  // Part `part` of a row of so many bytes.
  __device__ __forceinline__ void Load(const char* from, int32_t part, int64_t row_bytes, int32_t lane) {
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
      const int64_t at = part * kPartBytes + (i * kWarp + lane) * 16;
      if (at < row_bytes) pieces[i] = *At<uint4>(from, at);
    }
  }
  __device__ __forceinline__ void Store(char* to, int32_t part, int64_t row_bytes, int32_t lane) const {
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
      const int64_t at = part * kPartBytes + (i * kWarp + lane) * 16;
      if (at < row_bytes) *At<uint4>(to, at) = pieces[i];
    }
  }
};

// By one warp: how many of the entries [0, end) are of an expert.
__device__ __forceinline__ int32_t CountBefore(const Entry* entries, int32_t end, uint32_t expert, int32_t lane) {
  int32_t count = 0;
  for (int32_t base = 0; base < end; base += kWarp) {
    const int32_t i = base + lane;
    count += __popc(__ballot_sync(kAllLanes, i < end && entries[i].local_expert == expert));
  }
  return count;
}

// What the blocks of one source work on.
struct Message {
  __device__ Message(const SlotLayout& layout, const void* slot)
      : rows(static_cast<int32_t>(HeaderOf(slot).rows)),
        expert_rows(static_cast<int32_t>(HeaderOf(slot).expert_rows)),
        meta(At<RowMeta>(slot, layout.RowMetaOffset())),
        entries(At<Entry>(slot, layout.EntriesOffset(rows))),
        payload(At<char>(slot, static_cast<int64_t>(HeaderOf(slot).payload_offset))) {}

  int32_t rows;
  int32_t expert_rows;
  const RowMeta* meta;
  const Entry* entries;
  const char* payload;
};

// A warp's part of a row, on its way. kWhole: a row has one part, and is converted when it is placed.
template <int kCount, bool kWhole>
class RowInFlight {
 public:
  // Begins to read all that there is to say about it.
  __device__ RowInFlight(const RowFormat& format, const Message& message, int32_t row, int32_t part)
      : row_(row), part_(part), from_(message.payload + row * format.stride), lane_(threadIdx.x % kWarp) {
    if constexpr (!kWhole) pieces_.Load(from_, part, format.hidden * ElementBytes(format.type), lane_);
    begin_ = static_cast<int32_t>(message.meta[row].entry_begin);
    end_ = row + 1 < message.rows ? static_cast<int32_t>(message.meta[row + 1].entry_begin) : message.expert_rows;
  }

  // Where it goes, by all lanes; the first part brings what else there is to say about the row.
  __device__ void Place(const DispatchReceiveArgs& args, const RowFormat& format, const SharedBegins& shared,
                        const Message& message, int32_t source) const {
    const MoeShape& shape = args.layout.shape;
    const int32_t local_top_k = shape.LocalTopK();
    int32_t* positions = args.route.positions + (static_cast<int64_t>(source) * shape.max_tokens + row_) * local_top_k;
    for (int32_t i = 0; i < end_ - begin_; ++i) {
      const Entry entry = message.entries[begin_ + i];
      const int32_t number = CountBefore(message.entries, begin_, entry.local_expert, lane_);
      const int32_t position = shared.begins[entry.local_expert] + shared.before[entry.local_expert] + number;
      const bool fits = position < shape.capacity;
      if (part_ == 0 && lane_ == 0) {
        positions[i] = fits ? position : -1;
        if (fits) args.weights[position] = entry.weight;
      }
      if (fits) Store(args, format, position);
    }
    if (part_ != 0) return;
    for (int32_t i = end_ - begin_ + lane_; i < local_top_k; i += kWarp) positions[i] = -1;
  }

 private:
  __device__ __forceinline__ void Store(const DispatchReceiveArgs& args, const RowFormat& format,
                                        int64_t position) const {
    if constexpr (kWhole) {
      ReceiveRow<kCount>(format, {args.tokens_type, args.tokens, args.scales}, from_, position, lane_, kWarp);
    } else {
      const int64_t row_bytes = format.hidden * ElementBytes(format.type);
      pieces_.Store(static_cast<char*>(args.tokens) + position * row_bytes, part_, row_bytes, lane_);
      if (part_ != 0 || !format.quantised) return;
      const auto* scales = At<float>(from_, format.scales_offset);
      for (int64_t s = lane_; s < format.scale_count; s += kWarp) {
        args.scales[position * format.scale_count + s] = scales[s];
      }
    }
  }

  const int32_t row_;
  const int32_t part_;
  const char* const from_;
  const int32_t lane_;
  RowPieces pieces_;
  int32_t begin_;
  int32_t end_;
};

// What lies behind the rows of a message in route.positions.
__device__ void PadPositions(const DispatchReceiveArgs& args, int32_t source, int32_t rows) {
  const MoeShape& shape = args.layout.shape;
  int32_t* positions = args.route.positions + static_cast<int64_t>(source) * shape.max_tokens * shape.LocalTopK();
  const int64_t end = static_cast<int64_t>(shape.max_tokens) * shape.LocalTopK();
  for (int64_t i = static_cast<int64_t>(rows) * shape.LocalTopK() + blockIdx.y * kRowThreads + threadIdx.x; i < end;
       i += static_cast<int64_t>(gridDim.y) * kRowThreads) {
    positions[i] = -1;
  }
}

// Blocks (source, y) have every gridDim.y-th batch of parts of a message's rows; blocks (N + x, y) have the padding.
template <int kCount, bool kWhole>
__global__ void __launch_bounds__(kRowThreads, 4)
    FusedReceiveKernel(const __grid_constant__ DispatchReceiveArgs args, const __grid_constant__ RowFormat format,
                       ReceiveSlots slots, int32_t parts, KernelTimes* times) {
  const KernelTimer timer(times);
  extern __shared__ __align__(16) char memory[];
  const MoeShape& shape = args.layout.shape;
  const SharedBegins shared(memory, shape);
  const auto source = static_cast<int32_t>(blockIdx.x);
  if (source >= shape.ranks) {
    const int32_t total = FindBegins(args, slots, shared, source);
    const int64_t block = (source - shape.ranks) * static_cast<int64_t>(gridDim.y) + blockIdx.y;
    if (block == 0) WriteSizes(args, shared, total);
    return Pad(args, total < shape.capacity ? total : shape.capacity, block * kRowThreads + threadIdx.x,
               static_cast<int64_t>(kPaddingBlocks) * gridDim.y * kRowThreads);
  }
  const Message message(args.layout, slots[source]);
  int32_t item = static_cast<int32_t>(blockIdx.y) * kRowWarps + static_cast<int32_t>(threadIdx.x) / kWarp;
  const int32_t items = message.rows * parts;
  const int32_t warps = static_cast<int32_t>(gridDim.y) * kRowWarps;
  // The first row comes while the block finds out where it goes. Item 0 is there, if its row is no row.
  RowInFlight<kCount, kWhole> first(format, message, item < items ? item / parts : 0, item % parts);
  FindBegins(args, slots, shared, source);
  if (item < items) first.Place(args, format, shared, message, source);
  for (item += warps; item < items; item += warps) {
    RowInFlight<kCount, kWhole>(format, message, item / parts, item % parts)
        .Place(args, format, shared, message, source);
  }
  if (blockIdx.y == 0 && threadIdx.x == 0) args.route.rows[source] = message.rows;
  PadPositions(args, source, message.rows);
}

int64_t SharedBytes(const MoeShape& shape) { return SharedBegins(nullptr, shape).bytes; }

}  // namespace

bool CanFuseDispatchReceive(const DispatchReceiveArgs& args) {
  const MoeShape& shape = args.layout.shape;
  return shape.MaxRounds() == 1 && args.elements == 1 && shape.max_tokens <= kMostTokens &&
         SharedBytes(shape) <= kMostSharedBytes;
}

cudaError_t FusedDispatchReceive(const DispatchReceiveArgs& args, const LaunchOptions& options) {
  const MoeShape& shape = args.layout.shape;
  const RowFormat format(args.layout, ExchangeKind::kDispatch);
  const int64_t row_bytes = format.hidden * ElementBytes(format.type);
  const bool in_parts = args.tokens_type == format.type && row_bytes % 16 == 0;
  const auto parts = static_cast<int32_t>(in_parts ? (row_bytes + kPartBytes - 1) / kPartBytes : 1);
  const auto kernel = in_parts                     ? FusedReceiveKernel<kVector, false>
                      : IsVectorised(shape.hidden) ? FusedReceiveKernel<kVector, true>
                                                   : FusedReceiveKernel<1, true>;
  const dim3 blocks(
      shape.ranks + kPaddingBlocks,
      BlocksOfMessage(shape.ranks + kPaddingBlocks, int64_t{shape.max_tokens} * parts, options.multiprocessors));
  kernel<<<blocks, kRowThreads, SharedBytes(shape), options.stream>>>(
      args, format, {args.slots, options.first_slot, args.layout.SlotBytes()}, parts, options.times);
  return cudaGetLastError();
}

cudaError_t LoadFusedDispatchReceive() {
  return Load(FusedReceiveKernel<kVector, false>, FusedReceiveKernel<kVector, true>, FusedReceiveKernel<1, true>);
}

}  // namespace jax_fabric::kernels::cuda
