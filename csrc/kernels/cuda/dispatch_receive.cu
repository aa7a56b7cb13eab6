// DispatchReceive: where the rows of all rounds go, and those of the first one there.
//
// 1. CountKernel: how many rows each source has for each group, and each row's number among them.
// 2. ScanKernel: where each source's rows of a group begin. Groups lie one after the other, and within a group sources.
// 3. MoveKernel: final positions, the rows themselves, and what no row goes to.
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
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/cuda/receive_row.cuh"
#include "csrc/kernels/cuda/row_pieces.cuh"
#include "csrc/kernels/cuda/send_rows.cuh"
#include "csrc/kernels/cuda/workspace.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr int kScanThreads = 512;
// Blocks of MoveKernel, for each of its rows of blocks, that have no message.
constexpr int kPaddingBlocks = 8;
// Of MoveKernel, on a multiprocessor at once.
constexpr int kMoveBlocks = 4;

// The metadata of a checked message, which is of all rounds.
struct DispatchMessage {
  __device__ DispatchMessage(const SlotLayout& layout, const void* slot)
      : header(HeaderOf(slot)), round_rows(At<uint32_t>(slot, layout.RoundRowsOffset())) {
    if (layout.shape.MaxRounds() == 1) {
      rows = header.rows;
    } else {
#pragma unroll 1
      for (int32_t round = 0; round < layout.shape.MaxRounds(); ++round) rows += round_rows[round];
    }
    meta = At<RowMeta>(slot, layout.RowMetaOffset());
    entries = At<Entry>(slot, layout.EntriesOffset(rows));
    payload = At<char>(slot, static_cast<int64_t>(header.payload_offset));
  }

  __device__ int32_t expert_rows() const { return static_cast<int32_t>(header.expert_rows); }
  __device__ int32_t EntryBegin(int32_t row) const { return static_cast<int32_t>(meta[row].entry_begin); }
  __device__ int32_t EntryEnd(int32_t row) const {
    return static_cast<int32_t>(row + 1 < rows ? meta[row + 1].entry_begin : header.expert_rows);
  }
  // The first row whose token is not below `token`.
  __device__ int32_t FirstRowFrom(int64_t token) const {
    int32_t begin = 0, end = rows;
    while (begin < end) {
      const int32_t middle = begin + (end - begin) / 2;
      if (meta[middle].token < token) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }

  const MessageHeader& header;
  const uint32_t* round_rows;
  int32_t rows = 0;
  const RowMeta* meta;
  const Entry* entries;
  const char* payload;
};

__device__ __forceinline__ int32_t ElementOf(const DispatchReceiveArgs& args, uint32_t token) {
  const int64_t element = token / static_cast<uint32_t>(args.element_rows);
  return static_cast<int32_t>(element < args.elements ? element : args.elements - 1);
}

__device__ __forceinline__ int32_t* PositionsFrom(const DispatchReceiveArgs& args, int64_t source) {
  const MoeShape& shape = args.layout.shape;
  return args.route.positions + source * shape.max_tokens * shape.LocalTopK();
}

// ---- Counting ------------------------------------------------------------------------------------------------------

// What a block counts in shared memory: each warp the rows of each expert in its part of the entries.
constexpr int64_t kMostCountBytes = 48 << 10;

// Of a block of CountKernel at most: each warp goes through its part in steps, one after the other.
constexpr int kMostCountWarps = 32;
// Entries of each lane that are read at once.
constexpr int kEntriesAtOnce = 4;
constexpr uint32_t kNoExpert = 0xffffffffu;

// Warps of a block of CountKernel; 0: there is no room to count for so many experts.
int32_t CountWarps(const MoeShape& shape) {
  return static_cast<int32_t>(std::min<int64_t>(kMostCountWarps, kMostCountBytes / 4 / shape.experts_per_rank));
}

// By one warp: the number of this lane's entry, which is of `expert` or none, among those of the same expert so far.
// Adds those of all lanes to counts.
__device__ __forceinline__ int32_t NumberEntry(uint32_t expert, int32_t* counts) {
  const int32_t lane = threadIdx.x % kWarp;
  const bool is_entry = expert != kNoExpert;
  const uint32_t same = __match_any_sync(kAllLanes, expert);
  const uint32_t before = same & ((1u << lane) - 1);
  const int32_t number = is_entry ? counts[expert] + __popc(before) : 0;
  __syncwarp();  // all have read the counts
  if (is_entry && before == 0) counts[expert] += __popc(same);
  __syncwarp();
  return number;
}

// By one warp: NumberEntry for entries [begin, end), in their order; note(i, number) of each.
template <typename Note>
__device__ __forceinline__ void NumberEntries(const Entry* entries, int32_t begin, int32_t end, int32_t* counts,
                                              Note note) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
#pragma unroll 1
  for (int32_t base = begin; base < end; base += kEntriesAtOnce * kWarp) {
    uint32_t experts[kEntriesAtOnce];
#pragma unroll
    for (int j = 0; j < kEntriesAtOnce; ++j) {
      const int32_t i = base + j * kWarp + lane;
      experts[j] = i < end ? entries[i].local_expert : kNoExpert;
    }
#pragma unroll
    for (int j = 0; j < kEntriesAtOnce; ++j) {
      const int32_t number = NumberEntry(experts[j], counts);
      if (experts[j] != kNoExpert) note(base + j * kWarp + lane, number);
    }
  }
}

// A block for each source and element. Entries are in the order of rows, so a row's number among those of its source
// for an expert is its entry's among those of the expert. Counts twice: where each warp's part begins, then for good.
__global__ void __launch_bounds__(kMostCountWarps* kWarp)
    CountKernel(const __grid_constant__ DispatchReceiveArgs args,
                const __grid_constant__ DispatchReceiveWorkspace workspace, ReceiveSlots slots, KernelRun run) {
  AwaitKernelBefore();
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  if (HasNothing(channel)) return;
  slots.Choose(run, channel, args.layout.shape.ranks);
  extern __shared__ int32_t shared_counts[];  // [warps, experts_per_rank]
  const MoeShape& shape = args.layout.shape;
  const int32_t experts = shape.experts_per_rank;
  const int32_t source = blockIdx.x, element = blockIdx.y;
  const auto threads = static_cast<int32_t>(blockDim.x);
  const int32_t warps = threads / kWarp, warp = threadIdx.x / kWarp;
  const DispatchMessage message(args.layout, slots[source]);
  const int64_t first_token = static_cast<int64_t>(element) * args.element_rows;
  const int32_t first_row = element == 0 ? 0 : message.FirstRowFrom(first_token);
  const int32_t end_row =
      element + 1 == args.elements ? message.rows : message.FirstRowFrom(first_token + args.element_rows);
  const int32_t first = first_row < message.rows ? message.EntryBegin(first_row) : message.expert_rows();
  const int32_t last = end_row < message.rows ? message.EntryBegin(end_row) : message.expert_rows();
  const int32_t part = ((last - first + warps - 1) / warps + kWarp - 1) / kWarp * kWarp;
  const int32_t begin = min(first + warp * part, last), end = min(begin + part, last);
  int32_t* counts = shared_counts + warp * experts;
  int32_t* numbers = workspace.numbers + static_cast<int64_t>(source) * shape.max_tokens * shape.LocalTopK();

  for (int32_t i = threadIdx.x; i < warps * experts; i += threads) shared_counts[i] = 0;
  __syncthreads();
  NumberEntries(message.entries, begin, end, counts, [](int32_t, int32_t) {});
  __syncthreads();
  for (int32_t expert = threadIdx.x; expert < experts; expert += threads) {
    int32_t so_far = 0;
    for (int32_t w = 0; w < warps; ++w) {
      const int32_t count = shared_counts[w * experts + expert];
      shared_counts[w * experts + expert] = so_far;
      so_far += count;
    }
    workspace.counts[(static_cast<int64_t>(element) * experts + expert) * shape.ranks + source] = so_far;
  }
  __syncthreads();
  NumberEntries(message.entries, begin, end, counts, [numbers](int32_t i, int32_t number) { numbers[i] = number; });
}

// ---- Prefix sums ---------------------------------------------------------------------------------------------------

// A block for each element.
__global__ void __launch_bounds__(kScanThreads)
    ScanKernel(const __grid_constant__ DispatchReceiveArgs args,
               const __grid_constant__ DispatchReceiveWorkspace workspace, KernelRun run) {
  const KernelTimer timer(run.times);
  if (HasNothing(StateOf(run))) return;
  const MoeShape& shape = args.layout.shape;
  const int32_t element = blockIdx.x;
  const int64_t size = static_cast<int64_t>(shape.experts_per_rank) * shape.ranks;
  const int32_t* counts = workspace.counts + element * size;
  int32_t* begins = workspace.begins + element * size;
  const int64_t first = element * shape.capacity, last = first + shape.capacity;
  int32_t so_far = 0;
#pragma unroll 1
  for (int64_t base = 0; base < size; base += kScanThreads) {
    const int64_t i = base + threadIdx.x;
    const PairScan scan = ScanBlock<kScanThreads>({i < size ? counts[i] : 0, 0});
    if (i < size) begins[i] = static_cast<int32_t>(first) + so_far + scan.before.a;
    so_far += scan.total.a;
  }
  __syncthreads();
  const int64_t total = first + so_far;
#pragma unroll 1
  for (int32_t expert = threadIdx.x; expert < shape.experts_per_rank; expert += kScanThreads) {
    const int64_t begin = begins[static_cast<int64_t>(expert) * shape.ranks];
    const int64_t end =
        expert + 1 < shape.experts_per_rank ? begins[(static_cast<int64_t>(expert) + 1) * shape.ranks] : total;
    const int64_t size_within = (end < last ? end : last) - (begin < last ? begin : last);
    args.group_sizes[static_cast<int64_t>(element) * shape.experts_per_rank + expert] =
        static_cast<int32_t>(size_within);
  }
  if (threadIdx.x != 0) return;
  workspace.totals[element] = so_far;
  if (args.dropped != nullptr) {
    args.dropped[element] = so_far > shape.capacity ? static_cast<int32_t>(so_far - shape.capacity) : 0;
  }
}

// ---- Moving --------------------------------------------------------------------------------------------------------

// Where a row of an expert goes, the number-th from its source; -1: no room.
__device__ __forceinline__ int32_t PlaceEntry(const DispatchReceiveArgs& args,
                                              const DispatchReceiveWorkspace& workspace, int32_t source,
                                              int32_t element, const Entry& entry, int32_t number) {
  const MoeShape& shape = args.layout.shape;
  const int64_t group = static_cast<int64_t>(element) * shape.experts_per_rank + entry.local_expert;
  const int64_t position = static_cast<int64_t>(workspace.begins[group * shape.ranks + source]) + number;
  return position < (element + 1) * shape.capacity ? static_cast<int32_t>(position) : -1;
}

// By one warp: a row to the positions of those lanes. It is read once, where its type allows (kInPieces).
template <int kCount, bool kInPieces>
__device__ __forceinline__ void StoreRow(const DispatchReceiveArgs& args, const RowFormat& format, const char* from,
                                         int32_t position, uint32_t placed) {
  const RowTarget target{args.tokens_type, args.tokens, args.scales};
  const int32_t lane = threadIdx.x % kWarp;
  const auto to_each = [&](auto store) {
#pragma unroll 1
    for (uint32_t left = placed; left != 0; left &= left - 1) {
      store(static_cast<int64_t>(__shfl_sync(kAllLanes, position, __ffs(left) - 1)));
    }
  };
  if constexpr (kInPieces) {
    const int64_t row_bytes = format.hidden * ElementBytes(format.type);
#pragma unroll 1
    for (int32_t part = 0; part < RowPieces::Parts(row_bytes); ++part) {
      RowPieces pieces = {};
      pieces.Load(from, part, row_bytes, lane);
      to_each(
          [&](int64_t to) { pieces.Store(static_cast<char*>(args.tokens) + to * row_bytes, part, row_bytes, lane); });
    }
    if (format.quantised) to_each([&](int64_t to) { ReceiveScales(format, target, from, to, lane, kWarp); });
  } else {
    to_each([&](int64_t to) { ReceiveRow<kCount>(format, target, from, to, lane, kWarp); });
  }
}

// By one warp: the positions of one row, and the row to them if it is here.
template <int kCount, bool kInPieces>
__device__ void MoveRow(const DispatchReceiveArgs& args, const RowFormat& format,
                        const DispatchReceiveWorkspace& workspace, const DispatchMessage& message, int32_t source,
                        int32_t row) {
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t local_top_k = args.layout.shape.LocalTopK();
  int32_t* positions = PositionsFrom(args, source) + static_cast<int64_t>(row) * local_top_k;
  const int32_t* numbers =
      workspace.numbers + static_cast<int64_t>(source) * args.layout.shape.max_tokens * local_top_k;
  const int32_t begin = message.EntryBegin(row);
  const int32_t count = message.EntryEnd(row) - begin;
  const int32_t element = ElementOf(args, message.meta[row].token);
  const bool is_here = row < static_cast<int32_t>(message.header.rows);
  const char* from = message.payload + row * format.stride;
#pragma unroll 1
  for (int32_t base = 0; base < local_top_k; base += kWarp) {
    const int32_t i = base + lane;
    int32_t position = -1;
    if (i < count) {
      const Entry entry = message.entries[begin + i];
      position = PlaceEntry(args, workspace, source, element, entry, numbers[begin + i]);
      if (position >= 0) args.weights[position] = entry.weight;
    }
    if (i < local_top_k) positions[i] = position;
    const uint32_t placed = is_here ? __ballot_sync(kAllLanes, position >= 0) : 0;
    if (placed != 0) StoreRow<kCount, kInPieces>(args, format, from, position, placed);
  }
}

// route.rows of a source: the call takes as many rounds as the source that needs most. By one warp.
__device__ void NoteRounds(const DispatchReceiveArgs& args, const ReceiveSlots& slots, const DispatchMessage& message,
                           int32_t source) {
  const MoeShape& shape = args.layout.shape;
  const int32_t lane = threadIdx.x % kWarp;
  int32_t* rows = args.route.rows + static_cast<int64_t>(source) * shape.MaxRounds();
  if (shape.MaxRounds() == 1) {
    if (lane == 0) rows[0] = message.rows;
    return;
  }
  uint32_t rounds = 1;
#pragma unroll 1
  for (int32_t s = lane; s < shape.ranks; s += kWarp) rounds = max(rounds, HeaderOf(slots[s]).rounds);
  rounds = __reduce_max_sync(kAllLanes, rounds);
#pragma unroll 1
  for (int32_t round = lane; round < shape.MaxRounds(); round += kWarp) {
    rows[round] = round < static_cast<int32_t>(rounds) ? static_cast<int32_t>(message.round_rows[round]) : -1;
  }
}

// By all blocks that have no message: what an element's rows leave unused.
__device__ void Pad(const DispatchReceiveArgs& args, const DispatchReceiveWorkspace& workspace, int64_t thread,
                    int64_t threads) {
  const MoeShape& shape = args.layout.shape;
  const int64_t row_words = shape.hidden * ElementBytes(args.tokens_type);
  const int64_t scale_count = args.layout.ScalesOfRow();
#pragma unroll 1
  for (int32_t element = 0; element < args.elements; ++element) {
    const int64_t last = (element + 1) * shape.capacity;
    const int64_t used = element * shape.capacity + workspace.totals[element];
    const int64_t begin = used < last ? used : last;
#pragma unroll 1
    for (int64_t c = begin + thread; c < last; c += threads) args.weights[c] = 0.0f;
    if (!args.zero_padding) continue;
    ZeroBytes(args.tokens, begin * row_words, last * row_words, thread, threads);
    if (args.scales == nullptr || !args.layout.quantised) continue;
#pragma unroll 1
    for (int64_t i = begin * scale_count + thread; i < last * scale_count; i += threads) args.scales[i] = 0.0f;
  }
}

// Blocks (source, y) have every gridDim.y-th batch of rows of a message; blocks (N + x, y) have the padding.
template <int kCount, bool kInPieces>
__global__ void __launch_bounds__(kRowThreads, kMoveBlocks)
    MoveKernel(const __grid_constant__ DispatchReceiveArgs args, const __grid_constant__ RowFormat format,
               const __grid_constant__ DispatchReceiveWorkspace workspace, ReceiveSlots slots, KernelRun run) {
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  if (HasNothing(channel)) return;
  slots.Choose(run, channel, args.layout.shape.ranks);
  const MoeShape& shape = args.layout.shape;
  const auto source = static_cast<int32_t>(blockIdx.x);
  if (source >= shape.ranks) {
    const int64_t block = (source - shape.ranks) * static_cast<int64_t>(gridDim.y) + blockIdx.y;
    return Pad(args, workspace, block * kRowThreads + threadIdx.x,
               static_cast<int64_t>(kPaddingBlocks) * gridDim.y * kRowThreads);
  }
  const DispatchMessage message(args.layout, slots[source]);
  const int32_t warp = static_cast<int32_t>(blockIdx.y) * kRowWarps + static_cast<int32_t>(threadIdx.x) / kWarp;
  const int32_t warps = static_cast<int32_t>(gridDim.y) * kRowWarps;
#pragma unroll 1
  for (int32_t row = warp; row < message.rows; row += warps) {
    MoveRow<kCount, kInPieces>(args, format, workspace, message, source, row);
  }
  if (warp == 0) NoteRounds(args, slots, message, source);
  int32_t* positions = PositionsFrom(args, source);
  const int64_t end = static_cast<int64_t>(shape.max_tokens) * shape.LocalTopK();
#pragma unroll 1
  for (int64_t i = static_cast<int64_t>(message.rows) * shape.LocalTopK() + blockIdx.y * kRowThreads + threadIdx.x;
       i < end; i += static_cast<int64_t>(gridDim.y) * kRowThreads) {
    positions[i] = -1;
  }
}

cudaError_t ReceiveFirstRound(const DispatchReceiveArgs& args, const LaunchOptions& options) {
  const MoeShape& shape = args.layout.shape;
  WorkspaceParts parts(options.workspace);
  const DispatchReceiveWorkspace workspace(parts, shape, args.elements);
  const RowFormat format(args.layout, ExchangeKind::kDispatch);
  const ReceiveSlots slots{args.slots, options.first_slot, args.layout.SlotBytes()};
  const int32_t warps = CountWarps(shape);
  if (warps == 0) return cudaErrorInvalidValue;
  const cudaError_t error = LaunchDependent(options.follows_exchange(), CountKernel, dim3(shape.ranks, args.elements),
                                            warps * kWarp, int64_t{4} * warps * shape.experts_per_rank, options.stream,
                                            args, workspace, slots, options.run());
  if (error != cudaSuccess) return error;
  ScanKernel<<<args.elements, kScanThreads, 0, options.stream>>>(args, workspace, options.run());
  const dim3 blocks(shape.ranks + kPaddingBlocks,
                    BlocksOfMessage(shape.ranks, shape.max_tokens, options.multiprocessors, kMoveBlocks));
  const bool in_pieces = args.tokens_type == format.type && format.hidden * ElementBytes(format.type) % 16 == 0;
  const auto move = in_pieces                    ? MoveKernel<kVector, true>
                    : IsVectorised(shape.hidden) ? MoveKernel<kVector, false>
                                                 : MoveKernel<1, false>;
  move<<<blocks, kRowThreads, 0, options.stream>>>(args, format, workspace, slots, options.run());
  return cudaGetLastError();
}

}  // namespace

cudaError_t DispatchReceive(const DispatchReceiveArgs& args, const LaunchOptions& options) {
  if (args.round == 0 && options.fused && CanFuseDispatchReceive(args)) return FusedDispatchReceive(args, options);
  if (args.round == 0) return ReceiveFirstRound(args, options);
  RedispatchReceiveArgs rest{.layout = args.layout,
                             .round = args.round,
                             .kind = ExchangeKind::kDispatch,
                             .slots = args.slots,
                             .route = args.route,
                             .out_type = args.tokens_type,
                             .out = args.tokens,
                             .scales = args.scales};
  rest.layout.shape.capacity *= args.elements;
  return RedispatchReceive(rest, options);
}

cudaError_t LoadDispatchReceive() {
  return Load(CountKernel, ScanKernel, MoveKernel<kVector, true>, MoveKernel<kVector, false>, MoveKernel<1, false>);
}

}  // namespace jax_fabric::kernels::cuda
