// DispatchSend in one launch: a block for each token, and some that write the heads of messages.
//
// All of them count, in shared memory, what goes to each rank from all tokens and from those before theirs.
#include <algorithm>
#include <cstdint>

#include "csrc/kernels/cuda/dependent_launch.cuh"
#include "csrc/kernels/cuda/dispatch_metadata.cuh"
#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/fused_dispatch.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/cuda/send_row.cuh"
#include "csrc/kernels/cuda/tell.cuh"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {
namespace {

// So many choices are counted by each block in the time of a few loads.
constexpr int64_t kMostChoices = 4096;
constexpr int64_t kMostSharedBytes = 48 << 10;
// With a block for each of 128 tokens, as many as an H100 or H200 has multiprocessors: where two blocks share one, both
// are late.
constexpr int32_t kHeadBlocks = 4;
// The last threads of a block have less of a row than the others: they write what else there is to say about it.
constexpr int32_t kMetadataThreads = 128;
// A count has rows in its lower half, and experts' rows in the upper one: both are at most kMostChoices.
constexpr uint32_t kOneRow = 1;
constexpr uint32_t kOneExpertRow = 1 << 16;

// What a block knows, in shared memory. Its size is the launch's: nothing bounds ranks or experts.
struct SharedCounts {
  void** slots;      // [N]
  char** places;     // [N] where the rows of this block's token go
  uint32_t* before;  // [N] counts of the tokens before this block's
  uint32_t* others;  // [N] of its own and those behind it
  int32_t* index;    // [N] row of this block's token to each rank, or -1
  uint32_t* local;   // [E] rows of each expert: for heads
  int32_t* experts;  // [T, K]
  float* weights;    // [K] of this block's token
  uint32_t* counts;  // [K] its choices, as counts
  int64_t bytes = 0;

  __host__ __device__ SharedCounts(char* base, const MoeShape& shape, int64_t t_rows) : base_(base) {
    slots = Take<void*>(shape.ranks);
    places = Take<char*>(shape.ranks);
    before = Take<uint32_t>(shape.ranks);
    others = Take<uint32_t>(shape.ranks);
    index = Take<int32_t>(shape.ranks);
    local = Take<uint32_t>(int64_t{shape.ranks} * shape.experts_per_rank);
    experts = Take<int32_t>(t_rows * shape.top_k);
    weights = Take<float>(shape.top_k);
    counts = Take<uint32_t>(shape.top_k);
  }

 private:
  template <typename T>
  __host__ __device__ T* Take(int64_t count) {
    T* part = reinterpret_cast<T*>(base_ + bytes);
    bytes += AlignUp(count * static_cast<int64_t>(sizeof(T)), 16);
    return part;
  }

  char* base_;
};

// As dispatch_metadata.cuh wants them.
struct FusedCounts {
  const SharedCounts& shared;
  int32_t experts_per_rank;

  // Of all tokens.
  __device__ uint32_t all(int32_t rank) const { return shared.before[rank] + shared.others[rank]; }
  __device__ uint32_t rows(int32_t rank) const { return all(rank) & 0xffff; }
  __device__ uint32_t expert_rows(int32_t rank) const { return all(rank) >> 16; }
  __device__ uint32_t local_rows(int32_t rank, int32_t expert) const {
    return shared.local[static_cast<int64_t>(rank) * experts_per_rank + expert];
  }
  __device__ uint32_t first_round(int32_t rank) const { return rows(rank); }
  __device__ bool is_first(const int32_t*, int32_t k) const { return shared.counts[k] != 0; }
  __device__ int32_t entry_begin(int64_t, int32_t rank) const {
    return static_cast<int32_t>(shared.before[rank] >> 16);
  }
};

// Everything that a block reads but its row. A thread has one thing to read, and does not wait for one before it asks
// for the next: each costs a microsecond where the caches are cold. `token`: -1 for a block of heads.
template <bool kPrefetch>
__device__ void LoadChoices(const DispatchSendArgs& args, void* const* slots, const SharedCounts& shared,
                            int64_t token) {
  const MoeShape& shape = args.layout.shape;
  const int32_t choices = args.t_rows * shape.top_k;
  const auto thread = static_cast<int32_t>(threadIdx.x), from_behind = kSendThreads - 1 - thread;
  const int32_t fours = choices / 4;
#pragma unroll 1
  for (int32_t i = thread; i < fours; i += kSendThreads) {
    reinterpret_cast<int4*>(shared.experts)[i] = reinterpret_cast<const int4*>(args.experts)[i];
  }
#pragma unroll 1
  for (int32_t i = 4 * fours + from_behind; i < choices; i += kSendThreads) shared.experts[i] = args.experts[i];
#pragma unroll 1
  for (int32_t rank = from_behind; rank < shape.ranks; rank += kSendThreads) {
    shared.slots[rank] = slots[rank];
    shared.before[rank] = shared.others[rank] = 0;
    shared.index[rank] = -1;
  }
  if (token < 0) {
    const int32_t experts = shape.ranks * shape.experts_per_rank;
#pragma unroll 1
    for (int32_t e = thread; e < experts; e += kSendThreads) shared.local[e] = 0;
    return;
  }
#pragma unroll 1
  for (int32_t k = (thread + kSendThreads / 2) % kSendThreads; k < shape.top_k; k += kSendThreads) {
    shared.weights[k] = args.weights[token * shape.top_k + k];
  }
  if (!kPrefetch) return;
  // The row comes while choices are counted.
  const int64_t row_bytes = shape.hidden * ElementBytes(args.x_type);
  const char* row = static_cast<const char*>(args.x) + token * row_bytes;
#pragma unroll 1
  for (int64_t at = threadIdx.x * 128; at < row_bytes; at += kSendThreads * 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
  }
}

// Choice k of a token, as a count: what it adds that no earlier choice of the token did.
// `rank` is that of its expert.
__device__ __forceinline__ uint32_t CountOf(const MoeShape& shape, const int32_t* experts, int32_t k, int32_t rank) {
  const int32_t first_expert = rank * shape.experts_per_rank;
  // The last ranks may have fewer.
  const int32_t end = min(first_expert + shape.experts_per_rank, shape.experts);
  uint32_t count = kOneRow | kOneExpertRow;
#pragma unroll 1
  for (int32_t i = 0; i < k; ++i) {
    if (experts[i] == experts[k]) return 0;
    if (experts[i] >= first_expert && experts[i] < end) count = kOneExpertRow;
  }
  return count;
}

// The same by a warp whose lanes have the choices of a few tokens, one after the other: lanes of one token have the
// same `t`. A rank of -1: not routed.
__device__ __forceinline__ uint32_t CountInWarp(int32_t t, int32_t expert, int32_t rank) {
  const uint32_t lane = threadIdx.x % kWarp, earlier = (1u << lane) - 1;
  // Tokens of a warp differ in their lowest five bits; experts and ranks have fewer than the other 27, all of them set
  // for choices that are not routed.
  constexpr uint32_t kNotRouted = (1u << 27) - 1;
  const uint32_t token_bits = static_cast<uint32_t>(t) % kWarp << 27;
  const uint32_t same_expert =
      __match_any_sync(kAllLanes, token_bits | (rank < 0 ? kNotRouted : static_cast<uint32_t>(expert)));
  const uint32_t same_rank =
      __match_any_sync(kAllLanes, token_bits | (rank < 0 ? kNotRouted : static_cast<uint32_t>(rank)));
  if (rank < 0 || (same_expert & earlier) != 0) return 0;
  return (same_rank & earlier) != 0 ? kOneExpertRow : kOneRow | kOneExpertRow;
}

// `absent` as in AbsentRanks.
__device__ void CountChoices(const DispatchSendArgs& args, const uint8_t* absent, const SharedCounts& shared,
                             int64_t token) {
  const MoeShape& shape = args.layout.shape;
  const int32_t choices = args.t_rows * shape.top_k;
  // Then no token is in two warps.
  const bool in_warps = kWarp % shape.top_k == 0;
#pragma unroll 1
  for (auto base = static_cast<int32_t>(threadIdx.x - threadIdx.x % kWarp); base < choices; base += kSendThreads) {
    const int32_t choice = base + static_cast<int32_t>(threadIdx.x % kWarp);
    const int32_t expert = choice < choices ? shared.experts[choice] : -1;
    const int32_t rank = RankOf(shape, absent, expert);
    const int32_t t = choice / shape.top_k, k = choice % shape.top_k;
    uint32_t count = 0;
    if (in_warps) {
      count = CountInWarp(t, expert, rank);
    } else if (rank >= 0) {
      count = CountOf(shape, shared.experts + static_cast<int64_t>(t) * shape.top_k, k, rank);
    }
    if (t == token && choice < choices) shared.counts[k] = count;
    if (count == 0) continue;
    atomicAdd((t < token ? shared.before : shared.others) + rank, count);
    if (token < 0) atomicAdd(&shared.local[expert], 1u);
  }
}

// By the thread of choice k of this block's token: where the row goes, if the choice is the first one of its rank.
__device__ void FindPlace(const DispatchSendArgs& args, const RowFormat& format, const SharedCounts& shared,
                          int64_t token, int32_t k, int32_t* place_count) {
  const MoeShape& shape = args.layout.shape;
  if ((shared.counts[k] & kOneRow) == 0) return;
  const FusedCounts counts{shared, shape.experts_per_rank};
  const int32_t rank = shared.experts[token * shape.top_k + k] / shape.experts_per_rank;
  const uint32_t row = shared.before[rank] & 0xffff;
  const int64_t payload = args.layout.DispatchPayloadOffset(counts.rows(rank), counts.expert_rows(rank));
  shared.index[rank] = static_cast<int32_t>(row);
  shared.places[atomicAdd(place_count, 1)] = At<char>(shared.slots[rank], payload + row * format.stride);
}

// Everything but the row, by the last kMetadataThreads of the block.
__device__ void WriteMetadata(const DispatchSendArgs& args, const uint8_t* absent, const SharedCounts& shared,
                              int64_t token) {
  const MoeShape& shape = args.layout.shape;
  const FusedCounts counts{shared, shape.experts_per_rank};
  const int32_t* experts = shared.experts + token * shape.top_k;
  const auto thread = static_cast<int32_t>(kSendThreads - 1 - threadIdx.x);
#pragma unroll 1
  for (int32_t k = thread; k < shape.top_k; k += kMetadataThreads) {
    WriteEntry(args, absent, counts, shared.slots, experts, shared.weights, token, k);
  }
#pragma unroll 1
  for (int32_t rank = thread; rank < shape.ranks; rank += kMetadataThreads) {
    const int32_t row = shared.index[rank];
    args.route.index[token * shape.ranks + rank] = row;
    if (row < 0) continue;
    At<RowMeta>(shared.slots[rank], args.layout.RowMetaOffset())[row] =
        RowMeta{static_cast<uint32_t>(token), shared.before[rank] >> 16};
  }
}

// By the blocks that have no token.
__device__ __forceinline__ void WriteHeads(const DispatchSendArgs& args, const MessageStamp& stamp,
                                           const SharedCounts& shared) {
  const MoeShape& shape = args.layout.shape;
  constexpr int32_t kWarps = kSendThreads / kWarp;
  const auto warp = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / kWarp);
#pragma unroll 1
  for (int32_t rank = warp; rank < shape.ranks; rank += kHeadBlocks * kWarps) {
    WriteMessageHead(args, stamp, FusedCounts{shared, shape.experts_per_rank}, shared.slots[rank], rank,
                     threadIdx.x % kWarp, kWarp);
  }
}

// What is nearly always sent: bfloat16, quantised on its way, in rows that a block can hold.
using BatchSource = StaticType<ElementType::kBfloat16>;
using Batch = QuantisedBatch<kVector, BatchSource>;

bool IsBatch(const DispatchSendArgs& args) {
  return args.layout.quantised && args.x_type == ElementType::kBfloat16 && IsVectorised(args.layout.shape.hidden) &&
         args.layout.ScalesOfRow() <= Batch::kBlocks;
}

// kBatch: IsBatch; a kernel of its own, since code that is jumped over takes time to be fetched.
template <int kCount, bool kBatch>
__global__ void __launch_bounds__(kSendThreads)
    FusedSendKernel(const __grid_constant__ DispatchSendArgs args, const __grid_constant__ RowFormat format,
                    KernelRun run) {
  LetNextKernelBegin();
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  if (HasFailed(channel)) return;
  extern __shared__ __align__(16) char memory[];
  __shared__ int32_t place_count;
  const MoeShape& shape = args.layout.shape;
  const SharedCounts shared(memory, shape, args.t_rows);
  const int64_t token = static_cast<int64_t>(blockIdx.x) - kHeadBlocks;  // negative: heads
  const uint8_t* absent = AbsentRanks(run, channel, args);
  [[maybe_unused]] Batch batch;
  // The row is read while the block finds out where it goes.
  if (kBatch && token >= 0) {
    batch.Load(format, BatchSource(), static_cast<const uint16_t*>(args.x) + token * format.hidden, 0);
  }
  if (threadIdx.x == 0) place_count = 0;
  LoadChoices<!kBatch>(args, SendSlots(run, channel, args.slots, shape.ranks), shared, token);
  __syncthreads();
  CountChoices(args, absent, shared, token);
  __syncthreads();
  if (token < 0) {
    WriteHeads(args, StampOf(run, channel, args.stamp), shared);
    return TellWhenLast(run.tell, channel);
  }
#pragma unroll 1
  for (int32_t k = threadIdx.x; k < shape.top_k; k += kSendThreads) {
    FindPlace(args, format, shared, token, k, &place_count);
  }
  __syncthreads();
  if (threadIdx.x >= kSendThreads - kMetadataThreads) WriteMetadata(args, absent, shared, token);
  const RowSource source{args.x_type, args.x, args.scales};
  const Places places{shared.places, place_count};
  if (kBatch) {
    batch.Send(format, BatchSource(), places, 0);
  } else if (place_count > 0) {
    SendRow<kCount>(format, source, places, token);
  }
  SendRest(format, source, places, token);
  TellWhenLast(run.tell, channel);
}

int64_t SharedBytes(const DispatchSendArgs& args) {
  return SharedCounts(nullptr, args.layout.shape, args.t_rows).bytes;
}

}  // namespace

bool CanFuseDispatchSend(const DispatchSendArgs& args) {
  const MoeShape& shape = args.layout.shape;
  return shape.MaxRounds() == 1 && int64_t{args.t_rows} * shape.top_k <= kMostChoices &&
         SharedBytes(args) <= kMostSharedBytes;
}

cudaError_t FusedDispatchSend(const DispatchSendArgs& args, const LaunchOptions& options) {
  const RowFormat format(args.layout, ExchangeKind::kDispatch);
  const auto blocks = static_cast<uint32_t>(kHeadBlocks + args.t_rows);
  const auto kernel = IsBatch(args)                 ? FusedSendKernel<kVector, true>
                      : IsVectorised(format.hidden) ? FusedSendKernel<kVector, false>
                                                    : FusedSendKernel<1, false>;
  kernel<<<blocks, kSendThreads, SharedBytes(args), options.stream>>>(args, format, options.run());
  return cudaGetLastError();
}

cudaError_t LoadFusedDispatchSend() {
  return Load(FusedSendKernel<kVector, true>, FusedSendKernel<kVector, false>, FusedSendKernel<1, false>);
}

}  // namespace jax_fabric::kernels::cuda
