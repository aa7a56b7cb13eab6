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
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {
namespace {

// A row's entries are found among those of all rows before it, which must be few.
constexpr int32_t kMostTokens = 256;
constexpr int64_t kMostSharedBytes = 40 << 10;
constexpr int32_t kBlocks = 4;  // on a multiprocessor at once
// Of a row, what a warp moves at once: so many pieces of 16 bytes for each lane.
constexpr int32_t kPieces = 4;
constexpr int64_t kPartBytes = kPieces * kWarp * 16;

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

// By the block, after LoadCounts. Returns how many rows there are.
__device__ int32_t FindBegins(const DispatchReceiveArgs& args, const SharedBegins& shared) {
  const MoeShape& shape = args.layout.shape;
  const int32_t experts = shape.experts_per_rank;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
#pragma unroll 1
  for (int32_t expert = threadIdx.x / kWarp; expert < experts; expert += kRowWarps) {
    int32_t total = 0;
#pragma unroll 1
    for (int32_t s = lane; s < shape.ranks; s += kWarp) total += shared.counts[s * experts + expert];
    total = __reduce_add_sync(kAllLanes, total);
    if (lane == 0) shared.totals[expert] = total;
  }
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

// By one warp: where the rows of an expert from a source begin.
__device__ __forceinline__ int32_t BeginOf(const SharedBegins& shared, int32_t experts, uint32_t expert, int32_t source,
                                           int32_t lane) {
  int32_t before = 0;
#pragma unroll 1
  for (int32_t s = lane; s < source; s += kWarp) before += shared.counts[s * experts + static_cast<int32_t>(expert)];
  return shared.begins[expert] + __reduce_add_sync(kAllLanes, before);
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

constexpr Entry kNoEntry = {0xffffffffu, 0};

// By one warp: how many of the entries [0, end) are of an expert. `first`: entry `lane` of them.
__device__ __forceinline__ int32_t CountBefore(const Entry* entries, const Entry& first, int32_t end, uint32_t expert,
                                               int32_t lane) {
  int32_t count = __popc(__ballot_sync(kAllLanes, lane < end && first.local_expert == expert));
#pragma unroll 1
  for (int32_t base = kWarp; base < end; base += kWarp) {
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
    first_entry_ = lane_ < message.expert_rows ? message.entries[lane_] : kNoEntry;
    begin_ = static_cast<int32_t>(message.meta[row].entry_begin);
    end_ = row + 1 < message.rows ? static_cast<int32_t>(message.meta[row + 1].entry_begin) : message.expert_rows;
  }

  // Where it goes, by all lanes; the first part brings what else there is to say about the row.
  __device__ void Place(const DispatchReceiveArgs& args, const RowFormat& format, const SharedBegins& shared,
                        const Message& message, int32_t source) const {
    const MoeShape& shape = args.layout.shape;
    const int32_t local_top_k = shape.LocalTopK();
    int32_t* positions = args.route.positions + (static_cast<int64_t>(source) * shape.max_tokens + row_) * local_top_k;
#pragma unroll 1
    for (int32_t i = 0; i < end_ - begin_; ++i) {
      const Entry entry = EntryAt(message, begin_ + i);
      const int32_t number = CountBefore(message.entries, first_entry_, begin_, entry.local_expert, lane_);
      const int32_t position = BeginOf(shared, shape.experts_per_rank, entry.local_expert, source, lane_) + number;
      const bool fits = position < shape.capacity;
      if (part_ == 0 && lane_ == 0) {
        positions[i] = fits ? position : -1;
        if (fits) args.weights[position] = entry.weight;
      }
      if (fits) Store(args, format, position);
    }
    if (part_ != 0) return;
#pragma unroll 1
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
#pragma unroll 1
      for (int64_t s = lane_; s < format.scale_count; s += kWarp) {
        args.scales[position * format.scale_count + s] = scales[s];
      }
    }
  }

  // By all lanes: each has one of the first entries already.
  __device__ __forceinline__ Entry EntryAt(const Message& message, int32_t i) const {
    if (i >= kWarp) return message.entries[i];
    return {__shfl_sync(kAllLanes, first_entry_.local_expert, i), __shfl_sync(kAllLanes, first_entry_.weight, i)};
  }

  const int32_t row_;
  const int32_t part_;
  const char* const from_;
  const int32_t lane_;
  RowPieces pieces_;
  Entry first_entry_;
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
  const auto parts = static_cast<int32_t>(in_parts ? (row_bytes + kPartBytes - 1) / kPartBytes : 1);
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
