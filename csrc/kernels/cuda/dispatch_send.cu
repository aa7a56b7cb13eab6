// DispatchSend: the routes and metadata of all rounds, then the rows of the first one.
//
// 1. PlanKernel, a block for each rank: which tokens go there, in which row, and how many entries they have.
// 2. RoundsKernel, one block, where a call may take several rounds.
// 3. MetadataKernel: headers and counts, which need the counts of all ranks, and entries, which begin behind all rows.
// 4. SendRowsKernel: the rows, which begin behind all entries.
#include <cstdint>

#include "csrc/kernels/cuda/block_scan.cuh"
#include "csrc/kernels/cuda/dispatch_metadata.cuh"
#include "csrc/kernels/cuda/fused_dispatch.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/cuda/send_rows.cuh"
#include "csrc/kernels/cuda/workspace.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// A block of PlanKernel goes through all tokens: so many at once.
constexpr int kPlanThreads = 1024;

// Of token t at a rank; counts them in local_rows.
__device__ int32_t DistinctExperts(const DispatchSendArgs& args, int64_t t, int32_t rank, uint32_t* local_rows) {
  const int32_t top_k = args.layout.shape.top_k;
  const int32_t* experts = args.experts + t * top_k;
  int32_t distinct = 0;
#pragma unroll 1
  for (int32_t k = 0; k < top_k; ++k) {
    if (RankOf(args, experts[k]) != rank || !IsFirst(experts, k)) continue;
    ++distinct;
    atomicAdd(local_rows + experts[k] - rank * args.layout.shape.experts_per_rank, 1u);
  }
  return distinct;
}

__global__ void __launch_bounds__(kPlanThreads)
    PlanKernel(const __grid_constant__ DispatchSendArgs args, const __grid_constant__ DispatchSendWorkspace workspace,
               KernelRun run) {
  const KernelTimer timer(run.times);
  if (HasFailed(run)) return;
  const MoeShape& shape = args.layout.shape;
  const auto rank = static_cast<int32_t>(blockIdx.x);
  int32_t* row_tokens = workspace.row_tokens + static_cast<int64_t>(rank) * shape.max_tokens;
  int32_t* entry_begins = workspace.entry_begins + static_cast<int64_t>(rank) * shape.max_tokens;
  auto* meta = At<RowMeta>(SendSlots(run, args.slots, shape.ranks)[rank], args.layout.RowMetaOffset());
  uint32_t* local_rows = workspace.local_rows + static_cast<int64_t>(rank) * shape.experts_per_rank;
#pragma unroll 1
  for (int32_t e = threadIdx.x; e < shape.experts_per_rank; e += kPlanThreads) local_rows[e] = 0;
  __syncthreads();
  Pair so_far;  // rows and entries
#pragma unroll 1
  for (int32_t base = 0; base < args.t_rows; base += kPlanThreads) {
    const int32_t t = base + static_cast<int32_t>(threadIdx.x);
    const int32_t distinct = t < args.t_rows ? DistinctExperts(args, t, rank, local_rows) : 0;
    const PairScan scan = ScanBlock<kPlanThreads>({distinct > 0 ? 1 : 0, distinct});
    const Pair place = so_far + scan.before;
    if (t < args.t_rows) args.route.index[static_cast<int64_t>(t) * shape.ranks + rank] = distinct > 0 ? place.a : -1;
    if (distinct > 0) {
      row_tokens[place.a] = t;
      entry_begins[place.a] = place.b;
      meta[place.a] = RowMeta{static_cast<uint32_t>(t), static_cast<uint32_t>(place.b)};
    }
    so_far = so_far + scan.total;
  }
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
  if (HasFailed(run)) return;
  const MoeShape& shape = args.layout.shape;
#pragma unroll 1
  for (int32_t rank = threadIdx.x; rank < shape.ranks; rank += kThreads) workspace.round_begins[rank] = 0;
  void* const* slots = SendSlots(run, args.slots, shape.ranks);
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

// The first N blocks have a message each, the others 256 choices each.
__global__ void __launch_bounds__(kThreads)
    MetadataKernel(const __grid_constant__ DispatchSendArgs args,
                   const __grid_constant__ DispatchSendWorkspace workspace, KernelRun run) {
  const KernelTimer timer(run.times);
  if (HasFailed(run)) return;
  const MoeShape& shape = args.layout.shape;
  const PlannedCounts counts{args, workspace};
  void* const* slots = SendSlots(run, args.slots, shape.ranks);
  if (blockIdx.x < static_cast<uint32_t>(shape.ranks)) {
    return WriteMessageHead(args, StampOf(run, args.stamp), counts, slots[blockIdx.x], static_cast<int32_t>(blockIdx.x),
                            threadIdx.x, kThreads);
  }
  const int64_t choice = static_cast<int64_t>(blockIdx.x - shape.ranks) * kThreads + threadIdx.x;
  if (choice >= static_cast<int64_t>(args.t_rows) * shape.top_k) return;
  const int64_t t = choice / shape.top_k;
  const auto k = static_cast<int32_t>(choice % shape.top_k);
  WriteEntry(args, counts, slots, args.experts + t * shape.top_k, args.weights + t * shape.top_k, t, k);
}

cudaError_t SendFirstRound(const DispatchSendArgs& args, const DispatchSendWorkspace& workspace,
                           const LaunchOptions& options) {
  const MoeShape& shape = args.layout.shape;
  PlanKernel<<<shape.ranks, kPlanThreads, 0, options.stream>>>(args, workspace, options.run());
  if (shape.MaxRounds() > 1) RoundsKernel<<<1, kThreads, 0, options.stream>>>(args, workspace, options.run());
  const int64_t choices = static_cast<int64_t>(args.t_rows) * shape.top_k;
  const auto blocks = static_cast<uint32_t>(shape.ranks + (choices + kThreads - 1) / kThreads);
  MetadataKernel<<<blocks, kThreads, 0, options.stream>>>(args, workspace, options.run());
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return LaunchSendRows({.format = RowFormat(args.layout, ExchangeKind::kDispatch),
                         .shape = shape,
                         .round = 0,
                         .t_rows = args.t_rows,
                         .source = {args.x_type, args.x, args.scales},
                         .route = args.route,
                         .slots = args.slots,
                         .payload_offsets = workspace.payload_offsets},
                        options);
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

cudaError_t LoadDispatchSend() { return Load(PlanKernel, RoundsKernel, MetadataKernel); }

}  // namespace jax_fabric::kernels::cuda
