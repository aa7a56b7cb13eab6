// CombineSend and CombineReceive: combine, and the transpose of dispatch.
#include <algorithm>
#include <cstdint>

#include "csrc/kernels/cuda/dependent_launch.cuh"
#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/cuda/row_list.cuh"
#include "csrc/kernels/cuda/row_moves.cuh"
#include "csrc/kernels/cuda/tell.cuh"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels::cuda {
namespace {

// ---- Send ----------------------------------------------------------------------------------------------------------

// Of a row, what a warp sums at once: so many vectors for each lane.
constexpr int32_t kPieces = 4;
// On a multiprocessor at once. More would leave too few registers for the sums: 3 take 15.1 us where 2 take 13.0.
constexpr int32_t kSendBlocks = 2;

// Elements [begin, end) of a row, of which a lane has every kWarp-th vector.
template <int kCount>
struct RowPart {
  static constexpr int32_t kElements = kPieces * kWarp * kCount;

  int32_t begin;
  int32_t end;

  __device__ RowPart(int32_t part, int32_t hidden) : begin(part * kElements), end(min(begin + kElements, hidden)) {}
  __device__ __forceinline__ int32_t At(int32_t piece, int32_t lane) const {
    return begin + (piece * kWarp + lane) * kCount;
  }
};

// By one warp: a part of a row of a message, the sum over its positions, those that are none left out; from left to
// right, starting with the first of them.
template <int kCount, typename From, typename To>
__device__ __forceinline__ void WriteSum(const CombineSendArgs& args, From from_type, To to_type,
                                         const int32_t* positions, char* to, const RowPart<kCount>& part,
                                         int32_t first_position) {
  const MoeShape& shape = args.layout.shape;
  const int32_t local_top_k = shape.LocalTopK();
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int64_t row_bytes = shape.hidden * ElementBytes(args.y_type);
  const bool weighted = args.row_weights != nullptr;
  Floats<kCount> sums[kPieces] = {};  // of no terms: its experts had no room
  bool empty = true;
#pragma unroll 1
  for (int32_t base = 0; base < local_top_k; base += kWarp) {
    const int32_t mine = base == 0 ? first_position : base + lane < local_top_k ? positions[base + lane] : -1;
    const auto position = static_cast<int32_t>(IndexBelow(mine, shape.capacity));
    const float weight = weighted && position >= 0 ? args.row_weights[position] : 1.0f;
#pragma unroll 1
    for (uint32_t set = __ballot_sync(kAllLanes, position >= 0); set != 0; set &= set - 1) {
      const int32_t source = __ffs(set) - 1;
      const char* row = static_cast<const char*>(args.y) + __shfl_sync(kAllLanes, position, source) * row_bytes;
      const float term_weight = __shfl_sync(kAllLanes, weight, source);
      typename From::template Loaded<kCount> loaded[kPieces];
#pragma unroll
      for (int32_t i = 0; i < kPieces; ++i) {
        if (part.At(i, lane) < part.end) loaded[i] = from_type.template Fetch<kCount>(row, part.At(i, lane));
      }
#pragma unroll
      for (int32_t i = 0; i < kPieces; ++i) {
        Floats<kCount> term = from_type.template ToFloats<kCount>(loaded[i]);
#pragma unroll
        for (int32_t j = 0; j < kCount; ++j) {
          if (weighted) term.value[j] *= term_weight;
          sums[i].value[j] = empty ? term.value[j] : sums[i].value[j] + term.value[j];
        }
      }
      empty = false;
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kPieces; ++i) {
    if (part.At(i, lane) < part.end) to_type.template Store<kCount>(to, part.At(i, lane), sums[i]);
  }
}

// The same of one term.
template <int kCount, typename From, typename To>
__device__ __forceinline__ void WriteTerm(const CombineSendArgs& args, From from_type, To to_type, int64_t position,
                                          char* to, const RowPart<kCount>& part) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const char* row = static_cast<const char*>(args.y) + position * args.layout.shape.hidden * ElementBytes(args.y_type);
  const bool weighted = args.row_weights != nullptr;
  const float weight = weighted ? args.row_weights[position] : 1.0f;
  typename From::template Loaded<kCount> loaded[kPieces];
#pragma unroll
  for (int32_t i = 0; i < kPieces; ++i) {
    if (part.At(i, lane) < part.end) loaded[i] = from_type.template Fetch<kCount>(row, part.At(i, lane));
  }
#pragma unroll
  for (int32_t i = 0; i < kPieces; ++i) {
    if (part.At(i, lane) >= part.end) continue;
    Floats<kCount> term = from_type.template ToFloats<kCount>(loaded[i]);
#pragma unroll
    for (int32_t j = 0; j < kCount; ++j) {
      if (weighted) term.value[j] *= weight;
    }
    to_type.template Store<kCount>(to, part.At(i, lane), term);
  }
}

// By one warp. `first_position`: that of number `lane`.
template <int kCount, typename From, typename To>
__device__ __forceinline__ void WriteRowPart(const CombineSendArgs& args, From from_type, To to_type,
                                             const int32_t* positions, char* to, const RowPart<kCount>& part,
                                             int32_t first_position) {
  const SlotLayout& layout = args.layout;
  const auto position = static_cast<int32_t>(IndexBelow(first_position, layout.shape.capacity));
  const uint32_t set = __ballot_sync(kAllLanes, position >= 0);
  if (layout.shape.LocalTopK() <= kWarp && __popc(set) == 1) {
    WriteTerm<kCount>(args, from_type, to_type, __shfl_sync(kAllLanes, position, __ffs(set) - 1), to, part);
  } else {
    WriteSum<kCount>(args, from_type, to_type, positions, to, part, first_position);
  }
  if (part.end == layout.shape.hidden) {
    const auto row_bytes = static_cast<int32_t>(layout.shape.hidden * ElementBytes(layout.combine_type));
    ZeroRowPadding(to, row_bytes, static_cast<int32_t>(layout.CombineRowBytes()), static_cast<int>(threadIdx.x % kWarp),
                   kWarp);
  }
}

// Of kDispatchBack, by one block.
__device__ void WriteScalars(const CombineSendArgs& args, const int32_t* positions, int64_t rows, void* slot) {
  const SlotLayout& layout = args.layout;
  auto* scalars = At<float>(slot, layout.PlainPayloadOffset());
  const int64_t count = rows * layout.shape.LocalTopK();
  const int64_t end = layout.ScalarsBytes(rows) / static_cast<int64_t>(sizeof(float));
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < end; i += kRowThreads) {
    const int64_t position = i < count ? IndexBelow(positions[i], layout.shape.capacity) : -1;
    scalars[i] = position < 0 || args.row_scalars == nullptr ? 0.0f : args.row_scalars[position];
  }
}

// Everything but the rows and scalars of the message to a source, by one warp.
__device__ void WriteHead(const CombineSendArgs& args, const MessageStamp& stamp, int64_t source, void* slot) {
  const SlotLayout& layout = args.layout;
  const bool with_scalars = args.kind == ExchangeKind::kDispatchBack;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const IndexRange range = RowsInRound(layout.shape, args.route, source, args.round);
  const int64_t rows = range.size();
  ZeroWords(slot, sizeof(MessageHeader), layout.PlainPayloadOffset(), lane, kWarp);
  if (lane != 0) return;
  const int64_t payload_offset = layout.PlainPayloadOffset() + (with_scalars ? layout.ScalarsBytes(rows) : 0);
  WriteHeader(stamp, args.kind, {.rows = rows, .first_row = range.begin, .payload_offset = payload_offset}, slot);
  args.message_bytes[source] = layout.CombineMessageBytes(rows, with_scalars);
}

// The first message whose head this warp writes. Blocks first, and then warps: where blocks are few, all warps have
// some.
__device__ __forceinline__ int64_t FirstHead() {
  return static_cast<int64_t>(threadIdx.x / kWarp) * gridDim.x + blockIdx.x;
}

// Everything but the rows, by all blocks. `first_slot`: of FirstHead, if there is such a message.
__device__ __forceinline__ void WriteHeads(const CombineSendArgs& args, const MessageStamp& stamp, void* const* slots,
                                           void* first_slot) {
  const MoeShape& shape = args.layout.shape;
#pragma unroll 1
  for (int64_t source = FirstHead(); source < shape.ranks; source += int64_t{gridDim.x} * kRowWarps) {
    WriteHead(args, stamp, source, source == FirstHead() ? first_slot : slots[source]);
  }
  if (args.kind != ExchangeKind::kDispatchBack) return;
#pragma unroll 1
  for (int64_t source = blockIdx.x; source < shape.ranks; source += gridDim.x) {
    const IndexRange range = RowsInRound(shape, args.route, source, args.round);
    const int32_t* positions = args.route.positions + (source * shape.max_tokens + range.begin) * shape.LocalTopK();
    WriteScalars(args, positions, range.size(), slots[source]);
  }
}

// Warps share out the parts of all rows.
template <int kCount, typename From, typename To>
__global__ void __launch_bounds__(kRowThreads, kSendBlocks)
    CombineSendKernel(const __grid_constant__ CombineSendArgs args, From from_type, To to_type,
                      const __grid_constant__ SendRun run) {
  LetNextKernelBegin();
  const KernelTimer timer(run.times);
  // What does not depend on the channel's state is on its way before that is here.
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto rows_of = [&](int32_t source) {
    return static_cast<int32_t>(RowsInRound(args.layout.shape, args.route, source, args.round).size());
  };
  const int32_t rows_of_thread = thread < args.layout.shape.ranks ? rows_of(thread) : 0;
  const ChannelState channel = StateOf(run);
  BeginToTell(run.tell, channel);
  if (args.round == 0 ? HasFailed(channel) : HasNothing(channel)) return;
  extern __shared__ int32_t begins[];
  void* const* slots = SendSlots(run, channel, args.slots, args.layout.shape.ranks);
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  void* const first_slot = FirstHead() < shape.ranks ? slots[FirstHead()] : nullptr;
  RowList list(begins);
  list.Fill<kRowThreads>(shape.ranks,
                         [&](int32_t source) { return source == thread ? rows_of_thread : rows_of(source); });
  const int32_t local_top_k = shape.LocalTopK();
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int32_t parts = (shape.hidden - 1) / RowPart<kCount>::kElements + 1;
  const uint32_t warps = gridDim.x * kRowWarps;
  const uint32_t items = static_cast<uint32_t>(list.rows()) * parts;
#pragma unroll 1
  for (uint32_t item = blockIdx.x * kRowWarps + threadIdx.x / kWarp; item < items; item += warps) {
    const RowInMessage place = list.Find(static_cast<int32_t>(item / parts));
    const int64_t first_row = args.round == 0 ? 0 : RowsInRound(shape, args.route, place.message, args.round).begin;
    const int32_t* positions =
        args.route.positions + (int64_t{place.message} * shape.max_tokens + first_row + place.row) * local_top_k;
    const int64_t scalars_bytes =
        args.kind == ExchangeKind::kDispatchBack ? layout.ScalarsBytes(list.rows_of(place.message)) : 0;
    WriteRowPart<kCount>(args, from_type, to_type, positions,
                         At<char>(slots[place.message],
                                  layout.PlainPayloadOffset() + scalars_bytes + place.row * layout.CombineRowBytes()),
                         RowPart<kCount>(item % parts, shape.hidden), lane < local_top_k ? positions[lane] : -1);
  }
  WriteHeads(args, StampOf(run, channel, args.stamp), slots, first_slot);
  TellWhenLast(run.tell);
}

// ---- Receive -------------------------------------------------------------------------------------------------------

// Short blocks: a token's elements are more than a multiprocessor's share of the loads.
constexpr int kTokenThreads = 128;
constexpr int kTokenBlocks = 8;  // on a multiprocessor at once
// Rows of a token that are read at once.
constexpr int kTermsAtOnce = 8;

// Where the row of a token in the message from a rank is, and which one; null if there is none. `index`: of the route.
// A message is never read past the rows that it may have.
struct RowPlace {
  int64_t row;
  const char* at;
};
__device__ __forceinline__ RowPlace PlaceOf(const CombineReceiveArgs& args, const ReceiveSlots& slots, int64_t rank,
                                            int64_t index) {
  const SlotLayout& layout = args.layout;
  const void* slot = slots[rank];
  if (args.kind == ExchangeKind::kCombine && layout.shape.MaxRounds() == 1) {
    // All is known without a look at the header.
    if (index < 0 || index >= layout.shape.MessageRows()) return {-1, nullptr};
    return {index, At<char>(slot, layout.PlainPayloadOffset() + index * layout.CombineRowBytes())};
  }
  const MessageHeader& header = HeaderOf(slot);
  const int64_t row = index - header.first_row;
  if (row < 0 || row >= header.rows) return {-1, nullptr};
  return {row, At<char>(slot, static_cast<int64_t>(header.payload_offset) + row * layout.CombineRowBytes())};
}

__device__ __forceinline__ int32_t IndexOf(const CombineReceiveArgs& args, int64_t t, int64_t rank) {
  return __ldcg(args.route.index + t * args.layout.shape.ranks + rank);  // see LoadState
}

// By the first warp of a block: where the rows of a token are, by rising rank. `first_index`: that of rank `lane`.
__device__ int32_t FindRows(const CombineReceiveArgs& args, const ReceiveSlots& slots, int64_t t, int32_t first_index,
                            const char** rows) {
  const int32_t lane = threadIdx.x;
  int32_t count = 0;
#pragma unroll 1
  for (int64_t base = 0; base < args.layout.shape.ranks; base += kWarp) {
    const int64_t rank = base + lane;
    const char* row = nullptr;
    if (rank < args.layout.shape.ranks) {
      row = PlaceOf(args, slots, rank, base == 0 ? first_index : IndexOf(args, t, rank)).at;
    }
    const uint32_t set = __ballot_sync(kAllLanes, row != nullptr);
    if (row != nullptr) rows[count + __popc(set & ((1u << lane) - 1))] = row;
    count += __popc(set);
  }
  return count;
}

template <int kCount, typename From, typename To>
__device__ void SumRows(From from_type, To to_type, const char* const* rows, int32_t count, char* to, int64_t at) {
  Floats<kCount> sum;
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum.value[j] = 0.0f;
#pragma unroll 1
  for (int32_t base = 0; base < count; base += kTermsAtOnce) {
    typename From::template Loaded<kCount> terms[kTermsAtOnce];
#pragma unroll
    for (int i = 0; i < kTermsAtOnce; ++i) {
      if (base + i < count) terms[i] = from_type.template Fetch<kCount>(rows[base + i], at);
    }
#pragma unroll
    for (int i = 0; i < kTermsAtOnce; ++i) {
      if (base + i >= count) continue;
      const Floats<kCount> term = from_type.template ToFloats<kCount>(terms[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        // The sum starts with its first term: -0 stays -0.
        sum.value[j] = base + i == 0 ? term.value[j] : sum.value[j] + term.value[j];
      }
    }
  }
  to_type.template Store<kCount>(to, at, sum);
}

__device__ void ReceiveScalars(const CombineReceiveArgs& args, const ReceiveSlots& slots, int64_t t) {
  const MoeShape& shape = args.layout.shape;
  const int64_t local_top_k = shape.LocalTopK();
#pragma unroll 1
  for (int64_t k = threadIdx.x; k < shape.top_k; k += kTokenThreads) {
    const int64_t slot = IndexBelow(args.route.slot[t * shape.top_k + k], shape.ranks * local_top_k);
    float value = 0.0f;
    if (slot >= 0) {
      const int64_t rank = slot / local_top_k;
      const int64_t row = PlaceOf(args, slots, rank, IndexOf(args, t, rank)).row;
      const auto* scalars = At<float>(slots[rank], args.layout.PlainPayloadOffset());
      if (row >= 0) value = scalars[row * local_top_k + slot % local_top_k];
    }
    args.scalars[t * shape.top_k + k] = value;
  }
}

// Blocks (t, y) have the y-th part of a token's elements.
template <int kCount, typename From, typename To>
__global__ void __launch_bounds__(kTokenThreads, kTokenBlocks)
    CombineReceiveKernel(const __grid_constant__ CombineReceiveArgs args, From from_type, To to_type,
                         ReceiveSlots slots, KernelRun run) {
  const int64_t t = blockIdx.x;
  // Of an earlier call.
  const int32_t first_index = threadIdx.x < kWarp && threadIdx.x < args.layout.shape.ranks
                                  ? IndexOf(args, t, static_cast<int64_t>(threadIdx.x))
                                  : -1;
  AwaitKernelBefore();
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  if (HasNothing(channel)) return;
  slots.Choose(run, channel, args.layout.shape.ranks);
  extern __shared__ const char* rows_of_token[];
  __shared__ int32_t count;
  const MoeShape& shape = args.layout.shape;
  const IndexRange tokens = TokensInRound(shape, args.route, args.t_rows, args.round);
  if (t < tokens.begin || t >= tokens.end) return;
  if (threadIdx.x < kWarp) {
    const int32_t found = FindRows(args, slots, t, first_index, rows_of_token);
    if (threadIdx.x == 0) count = found;
  }
  __syncthreads();
  char* to = static_cast<char*>(args.out) + t * shape.hidden * ElementBytes(args.out_type);
  const int64_t step = static_cast<int64_t>(gridDim.y) * kTokenThreads * kCount;
#pragma unroll 1
  for (int64_t at = (static_cast<int64_t>(blockIdx.y) * kTokenThreads + threadIdx.x) * kCount; at < shape.hidden;
       at += step) {
    SumRows<kCount>(from_type, to_type, rows_of_token, count, to, at);
  }
  if (blockIdx.y == 0 && args.scalars != nullptr) ReceiveScalars(args, slots, t);
}

template <int kCount, typename Types>
cudaError_t LaunchSend(const CombineSendArgs& args, const LaunchOptions& options, Types types) {
  const MoeShape& shape = args.layout.shape;
  const int64_t parts = (shape.hidden + RowPart<kCount>::kElements - 1) / RowPart<kCount>::kElements;
  const int64_t most = int64_t{shape.ranks} * shape.MessageRows() * parts;
  const auto blocks = static_cast<uint32_t>(
      std::min<int64_t>(int64_t{kSendBlocks} * options.multiprocessors, (most + kRowWarps - 1) / kRowWarps));
  CombineSendKernel<kCount><<<blocks, kRowThreads, RowList::SharedBytes(shape.ranks), options.stream>>>(
      args, types.from, types.to, options.send_run());
  return cudaGetLastError();
}

template <int kCount, typename Types>
cudaError_t LaunchReceive(const CombineReceiveArgs& args, const LaunchOptions& options, Types types) {
  const MoeShape& shape = args.layout.shape;
  if (args.t_rows == 0) return cudaSuccess;
  const int64_t threads = (shape.hidden + kCount - 1) / kCount;
  const dim3 blocks(args.t_rows, static_cast<uint32_t>((threads + kTokenThreads - 1) / kTokenThreads));
  return LaunchDependent(options.follows_exchange(),
                         CombineReceiveKernel<kCount, decltype(types.from), decltype(types.to)>, blocks, kTokenThreads,
                         sizeof(char*) * shape.ranks, options.stream, args, types.from, types.to,
                         ReceiveSlots{args.slots, options.first_slot, args.layout.SlotBytes()}, options.run());
}

template <ElementType kFrom, ElementType kTo>
struct StaticTypes {
  StaticType<kFrom> from;
  StaticType<kTo> to;
};
struct AnyTypes {
  AnyType from;
  AnyType to;
};

// launch(kCount, types), with the types that matter for speed known when it is compiled.
template <typename Launch>
cudaError_t WithTypes(int64_t hidden, ElementType from, ElementType to, Launch launch) {
  constexpr auto kBfloat16 = ElementType::kBfloat16;
  if (!IsVectorised(hidden)) return launch.template operator()<1>(AnyTypes{{from}, {to}});
  if (from == kBfloat16 && to == kBfloat16)
    return launch.template operator()<kVector>(StaticTypes<kBfloat16, kBfloat16>{});
  return launch.template operator()<kVector>(AnyTypes{{from}, {to}});
}

}  // namespace

cudaError_t CombineSend(const CombineSendArgs& args, const LaunchOptions& options) {
  return WithTypes(args.layout.shape.hidden, args.y_type, args.layout.combine_type,
                   [&]<int kCount>(auto types) { return LaunchSend<kCount>(args, options, types); });
}

cudaError_t CombineReceive(const CombineReceiveArgs& args, const LaunchOptions& options) {
  return WithTypes(args.layout.shape.hidden, args.layout.combine_type, args.out_type,
                   [&]<int kCount>(auto types) { return LaunchReceive<kCount>(args, options, types); });
}

cudaError_t LoadCombine() {
  using Bfloat16 = StaticType<ElementType::kBfloat16>;
  return Load(CombineSendKernel<1, AnyType, AnyType>, CombineSendKernel<kVector, AnyType, AnyType>,
              CombineSendKernel<kVector, Bfloat16, Bfloat16>, CombineReceiveKernel<1, AnyType, AnyType>,
              CombineReceiveKernel<kVector, AnyType, AnyType>, CombineReceiveKernel<kVector, Bfloat16, Bfloat16>);
}

}  // namespace jax_fabric::kernels::cuda
