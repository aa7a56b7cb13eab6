// RedispatchSend and RedispatchReceive: the transpose of combine, and the later rounds of dispatch.
#include <cstdint>

#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/cuda/receive_row.cuh"
#include "csrc/kernels/cuda/row_moves.cuh"
#include "csrc/kernels/cuda/send_rows.cuh"
#include "csrc/kernels/cuda/tell.cuh"
#include "csrc/kernels/cuda/workspace.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels::cuda {
namespace {

// ---- Send ----------------------------------------------------------------------------------------------------------

// A block for each rank: the message but for its rows, and the first of them.
__global__ void __launch_bounds__(kRowThreads)
    HeadKernel(const __grid_constant__ RedispatchSendArgs args, const __grid_constant__ RedispatchWorkspace workspace,
               const __grid_constant__ SendRun run) {
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  BeginToTell(run.tell, channel);
  if (args.round == 0 ? HasFailed(channel) : HasNothing(channel)) return;
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  const int32_t rank = blockIdx.x;
  __shared__ int32_t first_row, rows;
  if (threadIdx.x == 0) first_row = shape.max_tokens, rows = 0;
  __syncthreads();
  const IndexRange tokens = TokensInRound(shape, args.route, args.t_rows, args.round);
#pragma unroll 1
  for (int64_t t = tokens.begin + threadIdx.x; t < tokens.end; t += kRowThreads) {
    const auto row = static_cast<int32_t>(IndexBelow(args.route.index[t * shape.ranks + rank], shape.max_tokens));
    if (row < 0) continue;
    atomicMin(&first_row, row);
    atomicAdd(&rows, 1);
  }
  __syncthreads();
  void* slot = SendSlots(run, channel, args.slots, shape.ranks)[rank];
  ZeroWords(slot, sizeof(MessageHeader), layout.PlainPayloadOffset(), threadIdx.x, kRowThreads);
  if (threadIdx.x == 0) {
    workspace.first_rows[rank] = first_row;
    const int64_t sent = rows < shape.MessageRows() ? rows : shape.MessageRows();
    WriteHeader(StampOf(run, channel, args.stamp), args.kind,
                {.rows = sent, .first_row = sent > 0 ? first_row : 0, .payload_offset = layout.PlainPayloadOffset()},
                slot);
    const int64_t stride =
        args.kind == ExchangeKind::kDispatch ? layout.DispatchRowBytes() : layout.RedispatchRowBytes();
    args.message_bytes[rank] = layout.PlainPayloadOffset() + sent * stride;
  }
  TellWhenLast(run.tell);
}

// ---- Receive -------------------------------------------------------------------------------------------------------

// A block for each source: *used is the number of rows that rows go to, in any round. DispatchReceive leaves no gaps.
__global__ void __launch_bounds__(kRowThreads)
    CountUsedKernel(const __grid_constant__ RedispatchReceiveArgs args,
                    const __grid_constant__ RedispatchWorkspace workspace, KernelRun run) {
  const KernelTimer timer(run.times);
  if (HasNothing(StateOf(run))) return;
  const MoeShape& shape = args.layout.shape;
  const int64_t source = blockIdx.x;
  const int64_t local_top_k = shape.LocalTopK();
  const int32_t rounds = RoundsOf(shape, args.route);
  const int64_t entries = RowsInRound(shape, args.route, source, rounds - 1).end * local_top_k;
  const int32_t* positions = args.route.positions + source * shape.max_tokens * local_top_k;
  int64_t used = 0;
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < entries; i += kRowThreads) {
    const int64_t position = IndexBelow(positions[i], shape.capacity);
    if (used <= position) used = position + 1;
  }
  const int32_t most = __reduce_max_sync(kAllLanes, static_cast<int32_t>(used));
  if (threadIdx.x % kWarp == 0 && most > 0) atomicMax(workspace.used, most);
}

// What no row goes to.
__global__ void __launch_bounds__(kRowThreads)
    ZeroUnusedKernel(const __grid_constant__ RedispatchReceiveArgs args,
                     const __grid_constant__ RedispatchWorkspace workspace, KernelRun run) {
  const KernelTimer timer(run.times);
  if (HasNothing(StateOf(run))) return;
  const MoeShape& shape = args.layout.shape;
  const int64_t used = *workspace.used;
  const int64_t row_bytes = shape.hidden * ElementBytes(args.out_type);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kRowThreads;
  ZeroBytes(args.out, used * row_bytes, shape.capacity * row_bytes, thread, threads);
  if (args.dots == nullptr) return;
#pragma unroll 1
  for (int64_t c = (args.y != nullptr ? used : 0) + thread; c < shape.capacity; c += threads) args.dots[c] = 0.0f;
}

template <int kCount>
__device__ float Dot(const void* a, ElementType a_type, const void* b, ElementType b_type, int64_t hidden,
                     int32_t lane) {
  const AnyType a_elements{a_type}, b_elements{b_type};
  float sum = 0;
#pragma unroll 1
  for (int64_t at = static_cast<int64_t>(lane) * kCount; at < hidden; at += kWarp * kCount) {
    const Floats<kCount> x = a_elements.Load<kCount>(a, at), y = b_elements.Load<kCount>(b, at);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += x.value[i] * y.value[i];
  }
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2) sum += __shfl_xor_sync(kAllLanes, sum, i);
  return sum;
}

// By one warp, one row of a message to one of its positions: out[position] = row * weight, dots[position] = <row, y>.
template <int kCount>
__device__ void ReceiveOne(const RedispatchReceiveArgs& args, const RowFormat& format, const char* row,
                           int64_t position) {
  const int64_t hidden = format.hidden;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  if (args.row_weights == nullptr) {
    ReceiveRow<kCount>(format, {args.out_type, args.out, args.scales}, row, position, lane, kWarp);
  } else {
    const AnyType source{format.type}, target{args.out_type};
    const float weight = args.row_weights[position];
    char* to = static_cast<char*>(args.out) + position * hidden * ElementBytes(args.out_type);
#pragma unroll 1
    for (int64_t at = static_cast<int64_t>(lane) * kCount; at < hidden; at += kWarp * kCount) {
      Floats<kCount> floats = source.Load<kCount>(row, at);
#pragma unroll
      for (int i = 0; i < kCount; ++i) floats.value[i] *= weight;
      target.Store<kCount>(to, at, floats);
    }
  }
  if (args.dots == nullptr || args.y == nullptr) return;
  const char* y = static_cast<const char*>(args.y) + position * hidden * ElementBytes(args.y_type);
  const float dot = Dot<kCount>(row, format.type, y, args.y_type, hidden, lane);
  if (lane == 0) args.dots[position] = dot;
}

template <int kCount>
__global__ void __launch_bounds__(kRowThreads)
    ReceiveKernel(const __grid_constant__ RedispatchReceiveArgs args, const __grid_constant__ RowFormat format,
                  ReceiveSlots slots, KernelRun run) {
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  if (HasNothing(channel)) return;
  slots.Choose(run, channel, args.layout.shape.ranks);
  const MoeShape& shape = args.layout.shape;
  const int64_t source = blockIdx.x;
  const int64_t local_top_k = shape.LocalTopK();
  const IndexRange range = RowsInRound(shape, args.route, source, args.round);
  const MessageHeader& header = HeaderOf(slots[source]);
  const int64_t sent = header.rows;
  const int64_t rows = range.size() < sent ? range.size() : sent;
  const char* payload = At<char>(slots[source], args.layout.PlainPayloadOffset());
  const int32_t* positions = args.route.positions + (source * shape.max_tokens + range.begin) * local_top_k;
#pragma unroll 1
  for (int64_t row = blockIdx.y * kRowWarps + threadIdx.x / kWarp; row < rows; row += gridDim.y * kRowWarps) {
#pragma unroll 1
    for (int64_t i = 0; i < local_top_k; ++i) {
      const int64_t position = IndexBelow(positions[row * local_top_k + i], shape.capacity);
      if (position >= 0) ReceiveOne<kCount>(args, format, payload + row * format.stride, position);
    }
  }
}

}  // namespace

cudaError_t RedispatchSend(const RedispatchSendArgs& args, const LaunchOptions& options) {
  const MoeShape& shape = args.layout.shape;
  WorkspaceParts parts(options.workspace);
  const RedispatchWorkspace workspace(parts, shape);
  SendRun run = options.send_run();
  if (args.t_rows > 0) run.tell = {};  // there is a launch after it
  HeadKernel<<<shape.ranks, kRowThreads, 0, options.stream>>>(args, workspace, run);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return LaunchSendRows({.format = RowFormat(args.layout, args.kind),
                         .shape = shape,
                         .round = args.round,
                         .t_rows = args.t_rows,
                         .source = {args.x_type, args.x, args.scales},
                         .route = args.route,
                         .slots = args.slots,
                         .first_rows = workspace.first_rows,
                         .plain_payload_offset = args.layout.PlainPayloadOffset()},
                        options);
}

cudaError_t RedispatchReceive(const RedispatchReceiveArgs& args, const LaunchOptions& options) {
  const MoeShape& shape = args.layout.shape;
  WorkspaceParts parts(options.workspace);
  const RedispatchWorkspace workspace(parts, shape);
  if (args.round == 0) {
    const cudaError_t error = cudaMemsetAsync(workspace.used, 0, sizeof(int32_t), options.stream);
    if (error != cudaSuccess) return error;
    CountUsedKernel<<<shape.ranks, kRowThreads, 0, options.stream>>>(args, workspace, options.run());
    ZeroUnusedKernel<<<2 * options.multiprocessors, kRowThreads, 0, options.stream>>>(args, workspace, options.run());
  }
  const RowFormat format(args.layout, args.kind);
  const ReceiveSlots slots{args.slots, options.first_slot, args.layout.SlotBytes()};
  const dim3 blocks(shape.ranks, BlocksOfMessage(shape.ranks, shape.MessageRows(), options.multiprocessors));
  if (IsVectorised(shape.hidden)) {
    ReceiveKernel<kVector><<<blocks, kRowThreads, 0, options.stream>>>(args, format, slots, options.run());
  } else {
    ReceiveKernel<1><<<blocks, kRowThreads, 0, options.stream>>>(args, format, slots, options.run());
  }
  return cudaGetLastError();
}

cudaError_t LoadRedispatch() {
  return Load(HeadKernel, CountUsedKernel, ZeroUnusedKernel, ReceiveKernel<kVector>, ReceiveKernel<1>);
}

}  // namespace jax_fabric::kernels::cuda
