// The metadata of dispatch's first messages, however its numbers were found.
//
// `Counts` knows, of this rank's rows: rows(rank), expert_rows(rank), local_rows(rank, expert), first_round(rank),
// entry_begin(t, rank), where the entries of token t begin, and is_first(experts, k), IsFirst of that token.
#ifndef JAX_FABRIC_KERNELS_CUDA_DISPATCH_METADATA_CUH_
#define JAX_FABRIC_KERNELS_CUDA_DISPATCH_METADATA_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

// [N] or null, as DispatchSendArgs::absent.
__device__ __forceinline__ const uint8_t* AbsentRanks(const KernelRun& run, const ChannelState& channel,
                                                      const DispatchSendArgs& args) {
  return run.channel != nullptr ? channel.epoch.absent : args.absent;
}

// Rank of an expert, or -1: not routed.
__device__ __forceinline__ int32_t RankOf(const MoeShape& shape, const uint8_t* absent, int32_t expert) {
  // As unsigned numbers, negative ids are too large as well.
  if (static_cast<uint32_t>(expert) >= static_cast<uint32_t>(shape.experts)) return -1;
  const int32_t rank = expert / shape.experts_per_rank;
  return absent != nullptr && absent[rank] != 0 ? -1 : rank;
}

// Whether choice k is the first one of the token that names its expert.
__device__ __forceinline__ bool IsFirst(const int32_t* experts, int32_t k) {
#pragma unroll 1
  for (int32_t i = 0; i < k; ++i) {
    if (experts[i] == experts[k]) return false;
  }
  return true;
}

// How many rounds this rank's rows need.
__device__ __forceinline__ int32_t RoundsNeeded(const DispatchSendArgs& args) {
  int32_t rounds = 1;
  if (args.layout.shape.MaxRounds() == 1) return rounds;
  while (args.route.token_ends[rounds - 1] < args.t_rows) ++rounds;
  return rounds;
}

// Everything before the rows of the message to `rank`, but for its row metadata and entries; with several rounds, but
// for how many rows each has. By threads [0, threads).
template <typename Counts>
__device__ __forceinline__ void WriteMessageHead(const DispatchSendArgs& args, const MessageStamp& stamp,
                                                 const Counts& counts, void* slot, int32_t rank, int32_t thread,
                                                 int32_t threads) {
  const SlotLayout& layout = args.layout;
  const int32_t ranks = layout.shape.ranks;
  auto* rows = At<uint32_t>(slot, layout.CountsOffset());
#pragma unroll 1
  for (int32_t peer = thread; peer < ranks; peer += threads) {
    rows[peer] = counts.rows(peer);
    rows[ranks + peer] = counts.expert_rows(peer);
  }
  auto* local_rows = At<uint32_t>(slot, layout.LocalRowsOffset());
#pragma unroll 1
  for (int32_t e = thread; e < layout.shape.experts_per_rank; e += threads) local_rows[e] = counts.local_rows(rank, e);
  const int64_t entries = counts.expert_rows(rank);
  const int64_t entries_end = layout.EntriesOffset(counts.rows(rank)) + entries * static_cast<int64_t>(sizeof(Entry));
  const int64_t payload_offset = layout.DispatchPayloadOffset(counts.rows(rank), entries);
  ZeroWords(slot, entries_end, payload_offset, thread, threads);
  if (thread != 0) return;
  const int64_t first_round = counts.first_round(rank);
  if (layout.shape.MaxRounds() == 1) {
    *At<uint32_t>(slot, layout.RoundRowsOffset()) = static_cast<uint32_t>(first_round);
    if (rank == 0) args.route.token_ends[0] = args.t_rows;
  }
  WriteHeader(
      stamp, ExchangeKind::kDispatch,
      {.rows = first_round, .expert_rows = entries, .rounds = RoundsNeeded(args), .payload_offset = payload_offset},
      slot);
  args.message_bytes[rank] = payload_offset + first_round * layout.DispatchRowBytes();
}

// The entry of choice k of token t, unless an earlier choice of it names the same expert; and route.slot. `experts` and
// `weights` are those of the token.
template <typename Counts>
__device__ __forceinline__ void WriteEntry(const DispatchSendArgs& args, const uint8_t* absent, const Counts& counts,
                                           void* const* slots, const int32_t* experts, const float* weights, int64_t t,
                                           int32_t k) {
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  const int32_t expert = experts[k];
  const int32_t rank = RankOf(shape, absent, expert);
  if (rank < 0) {
    args.route.slot[t * shape.top_k + k] = -1;
    return;
  }
  const int32_t first_expert = rank * shape.experts_per_rank;
  int32_t before = 0;  // experts of the token at that rank that come before
#pragma unroll 1
  for (int32_t i = 0; i < shape.top_k; ++i) {
    if (experts[i] >= first_expert && experts[i] < expert && counts.is_first(experts, i)) ++before;
  }
  args.route.slot[t * shape.top_k + k] = rank * shape.LocalTopK() + before;
  if (!counts.is_first(experts, k)) return;
  float weight = weights[k];
#pragma unroll 1
  for (int32_t i = k + 1; i < shape.top_k; ++i) {
    if (experts[i] == expert) weight += weights[i];
  }
  auto* entries = At<Entry>(slots[rank], layout.EntriesOffset(counts.rows(rank)));
  entries[counts.entry_begin(t, rank) + before] = Entry{static_cast<uint32_t>(expert - first_expert), weight};
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_DISPATCH_METADATA_CUH_
