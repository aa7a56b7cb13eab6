// DispatchSend: the routes and metadata of all rounds, then the rows of the first one.
//
// 1. PlanKernel, a block for each rank: which tokens go there, in which row, and how many entries they have.
// 2. RoundsKernel, one block, where a call may take several rounds.
// 3. MessagesKernel: headers and counts, which need the counts of all ranks; entries, which begin behind all rows; and
//    the rows, which begin behind all entries. Its first blocks are there, and have read theirs, when PlanKernel ends.
#include <cstdint>

#include "csrc/kernels/cuda/block_scan.cuh"
#include "csrc/kernels/cuda/dependent_launch.cuh"
#include "csrc/kernels/cuda/dispatch_metadata.cuh"
#include "csrc/kernels/cuda/fused_dispatch.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/cuda/send_rows.cuh"
#include "csrc/kernels/cuda/tell.cuh"
#include "csrc/kernels/cuda/workspace.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// A block of PlanKernel goes through all tokens: so many at once.
constexpr int kPlanThreads = 1024;

// Of them, for each thread.
constexpr int kPlanTokens = 4;
// A rank of so few experts, as usual, has a bit for each of them.
constexpr int32_t kMaskBits = 64;
// So many can be counted in shared memory.
constexpr int32_t kCountedExperts = 4096;
// As many choices a token as most models have: a thread has them all in registers.
constexpr int32_t kUsualChoices = 8;

// The experts [begin, end) of a rank; none if it is absent.
struct ExpertRange {
  int32_t begin, end;

  __device__ ExpertRange(const MoeShape& shape, const uint8_t* absent, int32_t rank)
      : begin(rank * shape.experts_per_rank), end(min(begin + shape.experts_per_rank, shape.experts)) {
    if (absent != nullptr && absent[rank] != 0) end = begin;
  }
  __device__ __forceinline__ bool Has(int32_t expert) const { return expert >= begin && expert < end; }
};

// Which of a rank's experts tokens [first + i * kWarp] name, a bit for each. The loads of all of
// them are under way at once.
__device__ __forceinline__ void FindExperts(const DispatchSendArgs& args, const ExpertRange& range, int32_t first,
                                            uint64_t (&masks)[kPlanTokens]) {
  const int32_t top_k = args.layout.shape.top_k;
  const bool by_four = top_k % 4 == 0;
  const auto note = [&range](int32_t expert, uint64_t& mask) {
    if (range.Has(expert)) mask |= uint64_t{1} << (expert - range.begin);
  };
#pragma unroll
  for (uint64_t& mask : masks) mask = 0;
#pragma unroll 1
  for (int32_t k = 0; k < top_k; k += by_four ? 4 : 1) {
    int4 experts[kPlanTokens];
#pragma unroll
    for (int i = 0; i < kPlanTokens; ++i) {
      const int32_t t = first + i * kWarp;
      const int32_t* from = args.experts + static_cast<int64_t>(t) * top_k + k;
      experts[i] = int4{-1, -1, -1, -1};
      if (t >= args.t_rows) continue;
      if (by_four) {
        experts[i] = *reinterpret_cast<const int4*>(from);
      } else {
        experts[i].x = *from;
      }
    }
#pragma unroll
    for (int i = 0; i < kPlanTokens; ++i) {
      note(experts[i].x, masks[i]);
      note(experts[i].y, masks[i]);
      note(experts[i].z, masks[i]);
      note(experts[i].w, masks[i]);
    }
  }
}

// How many different ones of a rank's experts each of these tokens names. Adds them to `local_rows`, in shared memory.
__device__ __forceinline__ void CountExperts(const DispatchSendArgs& args, const ExpertRange& range, int32_t first,
                                             int32_t (&distinct)[kPlanTokens], uint32_t* local_rows) {
  uint64_t masks[kPlanTokens];
  FindExperts(args, range, first, masks);
#pragma unroll
  for (int i = 0; i < kPlanTokens; ++i) {
    distinct[i] = __popcll(masks[i]);
#pragma unroll 1
    for (uint64_t left = masks[i]; left != 0; left &= left - 1) atomicAdd(local_rows + __ffsll(left) - 1, 1u);
  }
}

// The same for kUsualChoices a token, and any number of experts of a rank.
__device__ __forceinline__ void CountUsualChoices(const DispatchSendArgs& args, const ExpertRange& range, int32_t first,
                                                  int32_t (&distinct)[kPlanTokens], uint32_t* local_rows) {
  // Those of all tokens are on their way at once.
  int4 low[kPlanTokens], high[kPlanTokens];
#pragma unroll
  for (int i = 0; i < kPlanTokens; ++i) {
    const int32_t t = first + i * kWarp;
    low[i] = high[i] = int4{-1, -1, -1, -1};
    if (t >= args.t_rows) continue;
    const auto* fours = reinterpret_cast<const int4*>(args.experts) + 2 * static_cast<int64_t>(t);
    low[i] = fours[0], high[i] = fours[1];
  }
#pragma unroll
  for (int i = 0; i < kPlanTokens; ++i) {
    const int32_t experts[kUsualChoices] = {low[i].x,  low[i].y,  low[i].z,  low[i].w,
                                            high[i].x, high[i].y, high[i].z, high[i].w};
    distinct[i] = 0;
#pragma unroll
    for (int k = 0; k < kUsualChoices; ++k) {
      bool counts = range.Has(experts[k]);
#pragma unroll
      for (int j = 0; j < k; ++j) counts = counts && experts[j] != experts[k];
      if (!counts) continue;
      ++distinct[i];
      atomicAdd(local_rows + experts[k] - range.begin, 1u);
    }
  }
}

// The same for any number of choices and experts.
__device__ __forceinline__ void CountManyExperts(const DispatchSendArgs& args, const ExpertRange& range, int32_t first,
                                                 int32_t (&distinct)[kPlanTokens], uint32_t* local_rows) {
  const int32_t top_k = args.layout.shape.top_k;
#pragma unroll
  for (int i = 0; i < kPlanTokens; ++i) {
    const int32_t t = first + i * kWarp;
    distinct[i] = 0;
    if (t >= args.t_rows) continue;
    const int32_t* experts = args.experts + static_cast<int64_t>(t) * top_k;
#pragma unroll 1
    for (int32_t k = 0; k < top_k; ++k) {
      if (!range.Has(experts[k]) || !IsFirst(experts, k)) continue;
      ++distinct[i];
      atomicAdd(local_rows + experts[k] - range.begin, 1u);
    }
  }
}

// A warp has kPlanTokens * kWarp tokens in a row.
__global__ void __launch_bounds__(kPlanThreads)
    PlanKernel(const __grid_constant__ DispatchSendArgs args, const __grid_constant__ DispatchSendWorkspace workspace,
               KernelRun run) {
  LetNextKernelBegin();
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  if (HasFailed(channel)) return;
  __shared__ uint32_t shared_local_rows[kCountedExperts];
  const MoeShape& shape = args.layout.shape;
  const auto rank = static_cast<int32_t>(blockIdx.x);
  const ExpertRange range(shape, AbsentRanks(run, channel, args), rank);
  int32_t* row_tokens = workspace.row_tokens + static_cast<int64_t>(rank) * shape.max_tokens;
  int32_t* entry_begins = workspace.entry_begins + static_cast<int64_t>(rank) * shape.max_tokens;
  auto* meta = At<RowMeta>(SendSlots(run, channel, args.slots, shape.ranks)[rank], args.layout.RowMetaOffset());
  uint32_t* local_rows = workspace.local_rows + static_cast<int64_t>(rank) * shape.experts_per_rank;
  const bool usual = shape.top_k == kUsualChoices;
  const bool few = shape.experts_per_rank <= kMaskBits, in_shared = shape.experts_per_rank <= kCountedExperts;
  uint32_t* counted = in_shared ? shared_local_rows : local_rows;
#pragma unroll 1
  for (int32_t e = threadIdx.x; e < shape.experts_per_rank; e += kPlanThreads) counted[e] = 0;
  __syncthreads();
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp), warp = static_cast<int32_t>(threadIdx.x / kWarp);
  Pair so_far;  // rows and entries
#pragma unroll 1
  for (int32_t base = 0; base < args.t_rows; base += kPlanThreads * kPlanTokens) {
    const int32_t first = base + warp * kPlanTokens * kWarp + lane;
    int32_t distinct[kPlanTokens];
    // Each with the kind of memory that it counts in: atomics that find it out take twice as long.
    if (usual && in_shared) {
      CountUsualChoices(args, range, first, distinct, shared_local_rows);
    } else if (few) {
      CountExperts(args, range, first, distinct, shared_local_rows);
    } else if (in_shared) {
      CountManyExperts(args, range, first, distinct, shared_local_rows);
    } else {
      CountManyExperts(args, range, first, distinct, local_rows);
    }
    Pair places[kPlanTokens], of_warp;
#pragma unroll
    for (int i = 0; i < kPlanTokens; ++i) {
      const PairScan scan = ScanWarp({distinct[i] > 0 ? 1 : 0, distinct[i]});
      places[i] = of_warp + scan.before;
      of_warp = of_warp + scan.total;
    }
    const PairScan scan = ScanWarps(of_warp);
#pragma unroll
    for (int i = 0; i < kPlanTokens; ++i) {
      const int32_t t = first + i * kWarp;
      if (t >= args.t_rows) continue;
      const Pair place = so_far + scan.before + places[i];
      args.route.index[static_cast<int64_t>(t) * shape.ranks + rank] = distinct[i] > 0 ? place.a : -1;
      if (distinct[i] == 0) continue;
      row_tokens[place.a] = t;
      entry_begins[place.a] = place.b;
      meta[place.a] = RowMeta{static_cast<uint32_t>(t), static_cast<uint32_t>(place.b)};
    }
    so_far = so_far + scan.total;
  }
  __syncthreads();  // all have counted
#pragma unroll 1
  for (int32_t e = threadIdx.x; in_shared && e < shape.experts_per_rank; e += kPlanThreads) local_rows[e] = counted[e];
  if (threadIdx.x != 0) return;
  workspace.rows[rank] = so_far.a;
  workspace.expert_rows[rank] = so_far.b;
  workspace.first_round[rank] = so_far.a;
  workspace.payload_offsets[rank] = args.layout.DispatchPayloadOffset(so_far.a, so_far.b);
}

// A round ends before the first token that goes to a rank which has its P rows already: that of row P of the round.
__device__ int32_t EndOfRound(const DispatchSendArgs& args, const DispatchSendWorkspace& workspace) {
  const MoeShape& shape = args.layout.shape;
  __shared__ int32_t end;
  if (threadIdx.x == 0) end = args.t_rows;
  __syncthreads();
#pragma unroll 1
  for (int32_t rank = threadIdx.x; rank < shape.ranks; rank += kThreads) {
    const int32_t row = workspace.round_begins[rank] + shape.MessageRows();
    if (row >= workspace.rows[rank]) continue;
    atomicMin(&end, workspace.row_tokens[static_cast<int64_t>(rank) * shape.max_tokens + row]);
  }
  __syncthreads();
  const int32_t result = end;
  __syncthreads();
  return result;
}

__global__ void __launch_bounds__(kThreads)
    RoundsKernel(const __grid_constant__ DispatchSendArgs args, const __grid_constant__ DispatchSendWorkspace workspace,
                 KernelRun run) {
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  if (HasFailed(channel)) return;
  const MoeShape& shape = args.layout.shape;
#pragma unroll 1
  for (int32_t rank = threadIdx.x; rank < shape.ranks; rank += kThreads) workspace.round_begins[rank] = 0;
  void* const* slots = SendSlots(run, channel, args.slots, shape.ranks);
#pragma unroll 1
  for (int32_t round = 0; round < shape.MaxRounds(); ++round) {
    // Each thread goes on with the ranks that it began with: no other one reads their round_begins.
    const int32_t end = EndOfRound(args, workspace);
    if (threadIdx.x == 0) args.route.token_ends[round] = end;
#pragma unroll 1
    for (int32_t rank = threadIdx.x; rank < shape.ranks; rank += kThreads) {
      const int32_t* tokens = workspace.row_tokens + static_cast<int64_t>(rank) * shape.max_tokens;
      const int32_t begin = workspace.round_begins[rank];
      const int32_t next = LowerBound(tokens, workspace.rows[rank], end);
      At<uint32_t>(slots[rank], args.layout.RoundRowsOffset())[round] = static_cast<uint32_t>(next - begin);
      if (round == 0) workspace.first_round[rank] = next;
      workspace.round_begins[rank] = next;
    }
  }
}

__host__ __device__ constexpr int32_t BlocksOfChoices(int32_t choices) {
  return (choices + kSendThreads - 1) / kSendThreads;
}

// What WriteMessageHead and WriteEntry ask for.
struct PlannedCounts {
  const DispatchSendArgs& args;
  const DispatchSendWorkspace& workspace;

  __device__ uint32_t rows(int32_t rank) const { return workspace.rows[rank]; }
  __device__ uint32_t expert_rows(int32_t rank) const { return workspace.expert_rows[rank]; }
  __device__ uint32_t local_rows(int32_t rank, int32_t expert) const {
    return workspace.local_rows[static_cast<int64_t>(rank) * args.layout.shape.experts_per_rank + expert];
  }
  __device__ uint32_t first_round(int32_t rank) const { return workspace.first_round[rank]; }
  __device__ bool is_first(const int32_t* experts, int32_t k) const { return IsFirst(experts, k); }
  __device__ int32_t entry_begin(int64_t t, int32_t rank) const {
    const MoeShape& shape = args.layout.shape;
    const int64_t row = args.route.index[t * shape.ranks + rank];
    return workspace.entry_begins[static_cast<int64_t>(rank) * shape.max_tokens + row];
  }
};

// By the block with this number of those that have choices.
__device__ __forceinline__ void WriteEntries(const DispatchSendArgs& args, const uint8_t* absent,
                                             const PlannedCounts& counts, void* const* slots, int32_t block) {
  const int32_t top_k = args.layout.shape.top_k, choices = args.t_rows * top_k;
  const int32_t choice = block * kSendThreads + static_cast<int32_t>(threadIdx.x);
  if (choice >= choices) return;
  const int64_t t = choice / top_k;
  WriteEntry(args, absent, counts, slots, args.experts + t * top_k, args.weights + t * top_k, t, choice % top_k);
}

// The first N blocks have the head of a message each, the next ones kSendThreads choices each, and the others a token:
// its row, which is most of the work, and goes on while heads and entries are written.
template <int kCount, bool kUsual>
__global__ void __launch_bounds__(kSendThreads, kSendBlocks)
    MessagesKernel(const __grid_constant__ DispatchSendArgs args,
                   const __grid_constant__ DispatchSendWorkspace workspace, const __grid_constant__ SendRowsArgs rows,
                   const __grid_constant__ SendRun run) {
  LetNextKernelBegin();
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  BeginToTell(run.tell, channel);
  if (HasFailed(channel)) return;
  extern __shared__ char* places[];  // [N]
  const MoeShape& shape = args.layout.shape;
  const PlannedCounts counts{args, workspace};
  void* const* slots = SendSlots(run, channel, args.slots, shape.ranks);
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t first_token_block = shape.ranks + BlocksOfChoices(args.t_rows * shape.top_k);
  if (block < first_token_block) AwaitKernelBefore();
  if (block < shape.ranks) {
    WriteMessageHead(args, StampOf(run, channel, args.stamp), counts, slots[block], block, threadIdx.x, kSendThreads);
  } else if (block < first_token_block) {
    WriteEntries(args, AbsentRanks(run, channel, args), counts, slots, block - shape.ranks);
  } else {
    SendRowsOfToken<kCount, kUsual>(rows, slots, block - first_token_block, places);
  }
  TellWhenLast(run.tell);
}

cudaError_t SendFirstRound(const DispatchSendArgs& args, const DispatchSendWorkspace& workspace,
                           const LaunchOptions& options) {
  const MoeShape& shape = args.layout.shape;
  PlanKernel<<<shape.ranks, kPlanThreads, 0, options.stream>>>(args, workspace, options.run());
  if (shape.MaxRounds() > 1) RoundsKernel<<<1, kThreads, 0, options.stream>>>(args, workspace, options.run());
  const SendRowsArgs rows{.format = RowFormat(args.layout, ExchangeKind::kDispatch),
                          .shape = shape,
                          .round = 0,
                          .t_rows = args.t_rows,
                          .source = {args.x_type, args.x, args.scales},
                          .route = args.route,
                          .slots = args.slots,
                          .payload_offsets = workspace.payload_offsets};
  const auto blocks = static_cast<uint32_t>(shape.ranks + BlocksOfChoices(args.t_rows * shape.top_k) + args.t_rows);
  const auto kernel = IsUsualRow(rows.format, args.x_type) ? MessagesKernel<kVector, true>
                      : IsVectorised(shape.hidden)         ? MessagesKernel<kVector, false>
                                                           : MessagesKernel<1, false>;
  // Which tokens travel in the first of several rounds has to be known before one is read.
  const bool early = shape.MaxRounds() == 1;
  return LaunchDependent(early, kernel, blocks, kSendThreads, SendRowsSharedBytes(shape), options.stream, args,
                         workspace, rows, options.send_run());
}

}  // namespace

cudaError_t DispatchSend(const DispatchSendArgs& args, const LaunchOptions& options) {
  if (args.round > 0) {
    return RedispatchSend({.layout = args.layout,
                           .stamp = args.stamp,
                           .round = args.round,
                           .kind = ExchangeKind::kDispatch,
                           .t_rows = args.t_rows,
                           .x_type = args.x_type,
                           .x = args.x,
                           .scales = args.scales,
                           .route = args.route,
                           .slots = args.slots,
                           .message_bytes = args.message_bytes},
                          options);
  }
  if (options.fused && CanFuseDispatchSend(args)) return FusedDispatchSend(args, options);
  WorkspaceParts parts(options.workspace);
  return SendFirstRound(args, DispatchSendWorkspace(parts, args.layout.shape), options);
}

cudaError_t LoadDispatchSend() {
  return Load(PlanKernel, RoundsKernel, MessagesKernel<kVector, true>, MessagesKernel<kVector, false>,
              MessagesKernel<1, false>);
}

}  // namespace jax_fabric::kernels::cuda
