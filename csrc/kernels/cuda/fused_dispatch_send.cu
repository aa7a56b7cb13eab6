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

// n / d of small numbers, whose product is below 2^32. A division takes twenty instructions, and each block counts all
// choices.
class SmallDivision {
 public:
  explicit __device__ __forceinline__ SmallDivision(int32_t d) : factor_(0xffffffffu / static_cast<uint32_t>(d) + 1) {}
  __device__ __forceinline__ int32_t operator()(int32_t n) const {
    return factor_ == 0 ? n : static_cast<int32_t>(__umulhi(static_cast<uint32_t>(n), factor_));  // 0: by 1
  }

 private:
  const uint32_t factor_;
};

// As RankOf.
__device__ __forceinline__ int32_t RankBy(const SmallDivision& by_experts, const MoeShape& shape, const uint8_t* absent,
                                          int32_t expert) {
  if (static_cast<uint32_t>(expert) >= static_cast<uint32_t>(shape.experts)) return -1;
  const int32_t rank = by_experts(expert);
  return absent != nullptr && absent[rank] != 0 ? -1 : rank;
}

// What a choice adds to the counts of a block. `token`: the block's, or -1.
__device__ __forceinline__ void AddCount(const SharedCounts& shared, int64_t token, int32_t t, int32_t k,
                                         int32_t expert, int32_t rank, uint32_t count) {
  if (t == token) shared.counts[k] = count;
  if (count == 0) return;
  atomicAdd((t < token ? shared.before : shared.others) + rank, count);
  if (token < 0) atomicAdd(&shared.local[expert], 1u);
}

// As many choices a token as most models have: a thread has them all in registers, and compares each two once.
constexpr int32_t kUsualChoices = 8;

__device__ __forceinline__ void CountToken(const MoeShape& shape, const SmallDivision& by_experts,
                                           const uint8_t* absent, const SharedCounts& shared, int64_t token,
                                           int32_t t) {
  const auto* choices = reinterpret_cast<const int4*>(shared.experts) + 2 * t;
  const int4 low = choices[0], high = choices[1];
  const int32_t experts[kUsualChoices] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  int32_t ranks[kUsualChoices];
#pragma unroll
  for (int k = 0; k < kUsualChoices; ++k) {
    ranks[k] = RankBy(by_experts, shape, absent, experts[k]);
    bool new_expert = ranks[k] >= 0, new_rank = true;
#pragma unroll
    for (int i = 0; i < k; ++i) {
      new_expert = new_expert && experts[i] != experts[k];
      new_rank = new_rank && ranks[i] != ranks[k];
    }
    const uint32_t count = new_expert ? (new_rank ? kOneRow | kOneExpertRow : kOneExpertRow) : 0;
    AddCount(shared, token, t, k, experts[k], ranks[k], count);
  }
}

// `absent` as in AbsentRanks.
__device__ __forceinline__ void CountChoices(const DispatchSendArgs& args, const uint8_t* absent,
                                             const SharedCounts& shared, int64_t token) {
  const MoeShape& shape = args.layout.shape;
  const SmallDivision by_experts(shape.experts_per_rank);
  if (shape.top_k == kUsualChoices) {
#pragma unroll 1
    for (auto t = static_cast<int32_t>(threadIdx.x); t < args.t_rows; t += kSendThreads) {
      CountToken(shape, by_experts, absent, shared, token, t);
    }
    return;
  }
  const SmallDivision by_choices(shape.top_k);
#pragma unroll 1
  for (auto choice = static_cast<int32_t>(threadIdx.x); choice < args.t_rows * shape.top_k; choice += kSendThreads) {
    const int32_t expert = shared.experts[choice];
    const int32_t rank = RankBy(by_experts, shape, absent, expert);
    const int32_t t = by_choices(choice), k = choice - t * shape.top_k;
    const uint32_t count = rank < 0 ? 0 : CountOf(shape, shared.experts + t * shape.top_k, k, rank);
    AddCount(shared, token, t, k, expert, rank, count);
  }
}

// By the first warp: where the row of this block's token goes, once for each rank. Returns to how many.
__device__ __forceinline__ int32_t FindPlaces(const DispatchSendArgs& args, const RowFormat& format,
                                              const SharedCounts& shared, int64_t token) {
  const MoeShape& shape = args.layout.shape;
  const FusedCounts counts{shared, shape.experts_per_rank};
  const SmallDivision by_experts(shape.experts_per_rank);
  const auto lane = static_cast<int32_t>(threadIdx.x);
  int32_t count = 0;
#pragma unroll 1
  for (int32_t base = 0; base < shape.top_k; base += kWarp) {
    const int32_t k = base + lane;
    const bool goes = k < shape.top_k && (shared.counts[k] & kOneRow) != 0;
    const uint32_t going = __ballot_sync(kAllLanes, goes);
    if (goes) {
      const int32_t rank = by_experts(shared.experts[token * shape.top_k + k]);
      const uint32_t row = shared.before[rank] & 0xffff;
      const int64_t payload = args.layout.DispatchPayloadOffset(counts.rows(rank), counts.expert_rows(rank));
      shared.index[rank] = static_cast<int32_t>(row);
      shared.places[count + __popc(going & ((1u << lane) - 1))] =
          At<char>(shared.slots[rank], payload + row * format.stride);
    }
    count += __popc(going);
  }
  return count;
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

template <int kCount, bool kUsual>
__global__ void __launch_bounds__(kSendThreads)
    FusedSendKernel(const __grid_constant__ DispatchSendArgs args, const __grid_constant__ RowFormat format,
                    const __grid_constant__ SendRun run) {
  LetNextKernelBegin();
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  BeginToTell(run.tell, channel);
  if (HasFailed(channel)) return;
  extern __shared__ __align__(16) char memory[];
  __shared__ int32_t place_count;
  const MoeShape& shape = args.layout.shape;
  const SharedCounts shared(memory, shape, args.t_rows);
  const int64_t token = static_cast<int64_t>(blockIdx.x) - kHeadBlocks;  // negative: heads
  const uint8_t* absent = AbsentRanks(run, channel, args);
  [[maybe_unused]] UsualRow row;
  // The row is read while the block finds out where it goes.
  if (kUsual && token >= 0) {
    row.Load(format, UsualSource(), static_cast<const uint16_t*>(args.x) + token * format.hidden, 0);
  }
  LoadChoices<!kUsual>(args, SendSlots(run, channel, args.slots, shape.ranks), shared, token);
  __syncthreads();
  CountChoices(args, absent, shared, token);
  __syncthreads();
  if (token < 0) {
    WriteHeads(args, StampOf(run, channel, args.stamp), shared);
    return TellWhenLast(run.tell);
  }
  if (threadIdx.x < kWarp) {
    const int32_t found = FindPlaces(args, format, shared, token);
    if (threadIdx.x == 0) place_count = found;
  }
  __syncthreads();
  if (threadIdx.x >= kSendThreads - kMetadataThreads) WriteMetadata(args, absent, shared, token);
  const RowSource source{args.x_type, args.x, args.scales};
  const Places places{shared.places, place_count};
  if (kUsual) {
    row.Send(format, UsualSource(), places, 0);
  } else if (place_count > 0) {
    SendRow<kCount>(format, source, places, token);
  }
  SendRest(format, source, places, token);
  TellWhenLast(run.tell);
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
  const auto kernel = IsUsualRow(format, args.x_type) ? FusedSendKernel<kVector, true>
                      : IsVectorised(format.hidden)   ? FusedSendKernel<kVector, false>
                                                      : FusedSendKernel<1, false>;
  kernel<<<blocks, kSendThreads, SharedBytes(args), options.stream>>>(args, format, options.send_run());
  return cudaGetLastError();
}

cudaError_t LoadFusedDispatchSend() {
  return Load(FusedSendKernel<kVector, true>, FusedSendKernel<kVector, false>, FusedSendKernel<1, false>);
}

}  // namespace jax_fabric::kernels::cuda
