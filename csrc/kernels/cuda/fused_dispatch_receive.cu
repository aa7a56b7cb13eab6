// DispatchReceive in one launch: every block finds out where rows go from the messages' own counts.
#include <algorithm>
#include <cstdint>

#include "csrc/kernels/cuda/block_scan.cuh"
#include "csrc/kernels/cuda/dependent_launch.cuh"
#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/fused_dispatch.h"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/receive_row.cuh"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/cuda/row_list.cuh"
#include "csrc/kernels/cuda/row_pieces.cuh"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {
namespace {

// A row's entries are found among those of all rows before it, which must be few.
constexpr int32_t kMostTokens = 256;
constexpr int64_t kMostSharedBytes = 40 << 10;
constexpr int32_t kBlocks = 4;  // on a multiprocessor at once

// In shared memory.
struct SharedBegins {
  int32_t* rows;    // [N + 1] of a RowList
  int32_t* counts;  // [N, experts_per_rank] rows of each source for each expert
  int32_t* totals;  // [experts_per_rank] rows of an expert from all sources
  int32_t* begins;  // [experts_per_rank] position of the expert's first row
  int64_t bytes;

  __host__ __device__ SharedBegins(char* base, const MoeShape& shape) {
    const int64_t experts = shape.experts_per_rank;
    rows = reinterpret_cast<int32_t*>(base);
    counts = rows + shape.ranks + 1;
    totals = counts + shape.ranks * experts;
    begins = totals + experts;
    bytes = 4 * (shape.ranks + 1 + shape.ranks * experts + 2 * experts);
  }
};

// By the block: reads all sources' counts.
__device__ void LoadCounts(const DispatchReceiveArgs& args, const ReceiveSlots& slots, const SharedBegins& shared) {
  const MoeShape& shape = args.layout.shape;
  const int32_t experts = shape.experts_per_rank;
#pragma unroll 1
  for (int32_t i = threadIdx.x; i < shape.ranks * experts; i += kRowThreads) {
    shared.counts[i] =
        static_cast<int32_t>(At<uint32_t>(slots[i / experts], args.layout.LocalRowsOffset())[i % experts]);
  }
}

// By the block: rows of each expert from all sources.
__device__ void SumCounts(const MoeShape& shape, const SharedBegins& shared) {
  const int32_t experts = shape.experts_per_rank;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  if (shape.ranks < kWarp) {  // a thread for each expert: few sources mean many experts
#pragma unroll 1
    for (int32_t expert = threadIdx.x; expert < experts; expert += kRowThreads) {
      int32_t total = 0;
#pragma unroll 4
      for (int32_t s = 0; s < shape.ranks; ++s) total += shared.counts[s * experts + expert];
      shared.totals[expert] = total;
    }
    return;
  }
#pragma unroll 1
  for (int32_t expert = threadIdx.x / kWarp; expert < experts; expert += kRowWarps) {
    int32_t total = 0;
#pragma unroll 1
    for (int32_t s = lane; s < shape.ranks; s += kWarp) total += shared.counts[s * experts + expert];
    total = __reduce_add_sync(kAllLanes, total);
    if (lane == 0) shared.totals[expert] = total;
  }
}

// By the block, after LoadCounts. Returns how many rows there are.
__device__ int32_t FindBegins(const DispatchReceiveArgs& args, const SharedBegins& shared) {
  const MoeShape& shape = args.layout.shape;
  const int32_t experts = shape.experts_per_rank;
  SumCounts(shape, shared);
  __syncthreads();
  int32_t so_far = 0;
#pragma unroll 1
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
#pragma unroll 1
  for (int32_t expert = threadIdx.x; expert < shape.experts_per_rank; expert += kRowThreads) {
    const int64_t begin = shared.begins[expert], end = begin + shared.totals[expert];
    args.group_sizes[expert] = static_cast<int32_t>((end < shape.capacity ? end : shape.capacity) -
                                                    (begin < shape.capacity ? begin : shape.capacity));
  }
  if (threadIdx.x == 0 && args.dropped != nullptr) {
    args.dropped[0] = total > shape.capacity ? static_cast<int32_t>(total - shape.capacity) : 0;
  }
}

// What no row goes to, by all threads of the launch.
__device__ void Pad(const DispatchReceiveArgs& args, int64_t used, int64_t thread, int64_t threads) {
  const MoeShape& shape = args.layout.shape;
  const int64_t row_bytes = shape.hidden * ElementBytes(args.tokens_type);
  const int64_t scale_count = args.layout.ScalesOfRow();
#pragma unroll 1
  for (int64_t c = used + thread; c < shape.capacity; c += threads) args.weights[c] = 0.0f;
  if (!args.zero_padding) return;
  ZeroBytes(args.tokens, used * row_bytes, shape.capacity * row_bytes, thread, threads);
  if (args.scales == nullptr || !args.layout.quantised) return;
#pragma unroll 1
  for (int64_t i = used * scale_count + thread; i < shape.capacity * scale_count; i += threads) args.scales[i] = 0.0f;
}

// No expert has it.
constexpr uint32_t kNoExpert = 0xffffffffu;
// Of a message, the entries whose experts each lane reads before it is known which of them matter.
constexpr int32_t kAhead = 4;
// Of a row, the entries that are placed at once.
constexpr int32_t kAtOnce = 4;

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
    begin_ = static_cast<int32_t>(message.meta[row].entry_begin);
    end_ = row + 1 < message.rows ? static_cast<int32_t>(message.meta[row + 1].entry_begin) : message.expert_rows;
    if constexpr (!kWhole) pieces_.Load(from_, part, format.hidden * ElementBytes(format.type), lane_);
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const int32_t number = i * kWarp + lane_;
      const Entry entry = number < message.expert_rows ? message.entries[number] : Entry{kNoExpert, 0};
      ahead_[i] = entry.local_expert;
      if (i == 0) first_weight_ = entry.weight;
    }
  }

  // Where it goes, by all lanes; the first part brings what else there is to say about the row.
  __device__ void Place(const DispatchReceiveArgs& args, const RowFormat& format, const SharedBegins& shared,
                        const Message& message, int32_t source) const {
    const MoeShape& shape = args.layout.shape;
    const int32_t local_top_k = shape.LocalTopK();
    int32_t* positions = args.route.positions + (static_cast<int64_t>(source) * shape.max_tokens + row_) * local_top_k;
#pragma unroll 1
    for (int32_t first = begin_; first < end_; first += kAtOnce) {
      PlaceEntries(args, format, shared, message, source, first, positions + (first - begin_));
    }
    if (part_ != 0) return;
#pragma unroll 1
    for (int32_t i = end_ - begin_ + lane_; i < local_top_k; i += kWarp) positions[i] = -1;
  }

 private:
  __device__ __forceinline__ void Store(const DispatchReceiveArgs& args, const RowFormat& format,
                                        int64_t position) const {
    const RowTarget target{args.tokens_type, args.tokens, args.scales};
    if constexpr (kWhole) {
      ReceiveRow<kCount>(format, target, from_, position, lane_, kWarp);
    } else {
      const int64_t row_bytes = format.hidden * ElementBytes(format.type);
      pieces_.Store(static_cast<char*>(args.tokens) + position * row_bytes, part_, row_bytes, lane_);
      if (part_ == 0 && format.quantised) ReceiveScales(format, target, from_, position, lane_, kWarp);
    }
  }

  // At most kAtOnce of its entries, from `first` on. A row of an expert comes behind those of earlier sources, and
  // behind those that earlier entries of its message have.
  __device__ __forceinline__ void PlaceEntries(const DispatchReceiveArgs& args, const RowFormat& format,
                                               const SharedBegins& shared, const Message& message, int32_t source,
                                               int32_t first, int32_t* positions) const {
    const int32_t count = min(end_ - first, kAtOnce);
    const Entry mine = EntryOfLane(message, first, count);
    uint32_t experts[kAtOnce];
    int32_t before[kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) experts[i] = __shfl_sync(kAllLanes, mine.local_expert, i), before[i] = 0;
    CountSourcesBefore(args.layout.shape, shared, source, count, experts, before);
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) Count(j * kWarp + lane_ < begin_ ? ahead_[j] : kNoExpert, experts, before);
#pragma unroll 4
    for (int32_t j = kAhead * kWarp + lane_; j < begin_; j += kWarp) {
      Count(message.entries[j].local_expert, experts, before);
    }
    int32_t position = 0;  // of the lane's entry
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      if (i >= count) break;
      const auto rows = static_cast<int32_t>(__reduce_add_sync(kAllLanes, before[i]));
      if (lane_ == i) position = shared.begins[mine.local_expert] + rows;
    }
    if (part_ == 0 && lane_ < count) {
      const bool fits = position < args.layout.shape.capacity;
      positions[lane_] = fits ? position : -1;
      if (fits) args.weights[position] = mine.weight;
    }
#pragma unroll 1
    for (int32_t i = 0; i < count; ++i) {
      const int32_t to = __shfl_sync(kAllLanes, position, i);
      if (to < args.layout.shape.capacity) Store(args, format, to);
    }
  }

  // Entry `first + lane`, for lanes below `count`.
  __device__ __forceinline__ Entry EntryOfLane(const Message& message, int32_t first, int32_t count) const {
    if (first + count <= kWarp) {  // all of them have been read
      const int32_t number = (first + lane_) % kWarp;
      return {__shfl_sync(kAllLanes, ahead_[0], number), __shfl_sync(kAllLanes, first_weight_, number)};
    }
    return lane_ < count ? message.entries[first + lane_] : Entry{kNoExpert, 0};
  }

  // Rows of each expert from sources before this one: of every kWarp-th of those, by each lane.
  __device__ __forceinline__ void CountSourcesBefore(const MoeShape& shape, const SharedBegins& shared, int32_t source,
                                                     int32_t count, const uint32_t (&experts)[kAtOnce],
                                                     int32_t (&before)[kAtOnce]) const {
#pragma unroll 1
    for (int32_t s = lane_; s < source; s += kWarp) {
      const int32_t* counts = shared.counts + s * shape.experts_per_rank;
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (i < count) before[i] += counts[experts[i]];
      }
    }
  }

  // An entry before the row's, of which no two are of the same expert.
  static __device__ __forceinline__ void Count(uint32_t expert, const uint32_t (&experts)[kAtOnce],
                                               int32_t (&before)[kAtOnce]) {
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) before[i] += experts[i] == expert ? 1 : 0;
  }

  const int32_t row_;
  const int32_t part_;
  const char* const from_;
  const int32_t lane_;
  RowPieces pieces_;
  uint32_t ahead_[kAhead];
  float first_weight_;
  int32_t begin_;
  int32_t end_;
};

// What lies behind the rows of a message in route.positions; and route.rows.
__device__ void PadPositions(const DispatchReceiveArgs& args, int32_t source, int32_t rows) {
  const MoeShape& shape = args.layout.shape;
  int32_t* positions = args.route.positions + static_cast<int64_t>(source) * shape.max_tokens * shape.LocalTopK();
  const int32_t end = shape.max_tokens * shape.LocalTopK();
#pragma unroll 1
  for (int32_t i = rows * shape.LocalTopK() + threadIdx.x; i < end; i += kRowThreads) positions[i] = -1;
  if (threadIdx.x == 0) args.route.rows[source] = rows;
}

// Warps share out the parts of all rows; blocks of them the rest.
template <int kCount, bool kWhole>
__global__ void __launch_bounds__(kRowThreads, kBlocks)
    FusedReceiveKernel(const __grid_constant__ DispatchReceiveArgs args, const __grid_constant__ RowFormat format,
                       ReceiveSlots slots, int32_t parts, KernelRun run) {
  AwaitKernelBefore();
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  if (HasNothing(channel)) return;
  slots.Choose(run, channel, args.layout.shape.ranks);
  extern __shared__ __align__(16) char memory[];
  const MoeShape& shape = args.layout.shape;
  const SharedBegins shared(memory, shape);
  LoadCounts(args, slots, shared);
  RowList list(shared.rows);
  list.Fill<kRowThreads>(shape.ranks, [&](int32_t source) { return HeaderOf(slots[source]).rows; });
  int32_t item = static_cast<int32_t>(blockIdx.x) * kRowWarps + static_cast<int32_t>(threadIdx.x) / kWarp;
  const int32_t items = list.rows() * parts;
  const int32_t warps = static_cast<int32_t>(gridDim.x) * kRowWarps;
  // The first row comes while the block finds out where it goes. A warp without one reads what is there.
  const RowInMessage place = item < items ? list.Find(item / parts) : RowInMessage{0, 0};
  const Message message(args.layout, slots[place.message]);
  RowInFlight<kCount, kWhole> first(format, message, place.row, item % parts);
  const int32_t total = FindBegins(args, shared);
  if (item < items) first.Place(args, format, shared, message, place.message);
#pragma unroll 1
  for (item += warps; item < items; item += warps) {
    const RowInMessage next = list.Find(item / parts);
    const Message of(args.layout, slots[next.message]);
    RowInFlight<kCount, kWhole>(format, of, next.row, item % parts).Place(args, format, shared, of, next.message);
  }
  if (blockIdx.x == 0) WriteSizes(args, shared, total);
#pragma unroll 1
  for (int32_t source = blockIdx.x; source < shape.ranks; source += gridDim.x) {
    PadPositions(args, source, list.rows_of(source));
  }
  Pad(args, total < shape.capacity ? total : shape.capacity, blockIdx.x * kRowThreads + threadIdx.x,
      int64_t{gridDim.x} * kRowThreads);
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
  const int32_t parts = in_parts ? RowPieces::Parts(row_bytes) : 1;
  const auto kernel = in_parts                     ? FusedReceiveKernel<kVector, false>
                      : IsVectorised(shape.hidden) ? FusedReceiveKernel<kVector, true>
                                                   : FusedReceiveKernel<1, true>;
  const int64_t most = int64_t{shape.ranks} * shape.max_tokens * parts;
  const auto blocks = static_cast<uint32_t>(
      std::min<int64_t>(int64_t{kBlocks} * options.multiprocessors, (most + kRowWarps - 1) / kRowWarps));
  return LaunchDependent(options.follows_exchange(), kernel, blocks, kRowThreads, SharedBytes(shape), options.stream,
                         args, format, ReceiveSlots{args.slots, options.first_slot, args.layout.SlotBytes()}, parts,
                         options.run());
}

cudaError_t LoadFusedDispatchReceive() {
  return Load(FusedReceiveKernel<kVector, false>, FusedReceiveKernel<kVector, true>, FusedReceiveKernel<1, true>);
}

}  // namespace jax_fabric::kernels::cuda
