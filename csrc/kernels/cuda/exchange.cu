#include <cstdint>
#include <cuda/atomic>

#include "csrc/kernels/cuda/check_message.cuh"
#include "csrc/kernels/cuda/exchange.h"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/rounds.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Looks at a word for which a kernel waits, between two looks at what else might end its wait.
constexpr int kLooks = 32;

// Words that peers or the host, too, read or write.
template <typename T>
using SystemWord = ::cuda::atomic_ref<T, ::cuda::thread_scope_system>;
template <typename T>
using DeviceWord = ::cuda::atomic_ref<T, ::cuda::thread_scope_device>;

__device__ __forceinline__ SignalError ErrorOf(const ExchangeChannel& channel) {
  // relaxed: it decides whether to go on, nothing is read because of it
  return DeviceWord<SignalError>(channel.state->error).load(::cuda::memory_order_relaxed);
}

// Keeps the first error of the channel. Who tells the host of it reads `source` and `detail` behind a barrier of the
// block or, in another block, behind IsLastBlock.
__device__ void Fail(const ExchangeChannel& channel, SignalError error, uint32_t source, int64_t detail) {
  auto expected = SignalError::kNone;
  if (!DeviceWord<SignalError>(channel.state->error)
           .compare_exchange_strong(expected, error, ::cuda::memory_order_relaxed)) {
    return;
  }
  channel.state->source = source;
  channel.state->detail = detail;
}

// By one thread, when all others are through: all that they have to say is there when the host sees it.
__device__ void TellHost(const ExchangeChannel& channel, int64_t sequence) {
  ChannelState& state = *channel.state;
  if (state.told != 0) return;
  state.told = sequence;
  auto& line = channel.signals->error;
  line.error = ErrorOf(channel);
  line.source = state.source;
  line.detail = state.detail;
  // release, and cumulative; the host acquires it.
  SystemWord<int64_t>(line.sequence).store(sequence, ::cuda::memory_order_release);
}

// Whether this exchange may be begun or finished now. All blocks find the same.
__device__ bool IsInOrder(const ExchangeArgs& args, int64_t sequence) {
  const ChannelState& state = *args.channel.state;
  if (args.part == ExchangePart::kFinish) {
    return state.issued == state.finished + 1 && *args.ticket == static_cast<int32_t>(sequence);
  }
  return state.issued == state.finished;
}

// By one thread of the block for `rank`: what the send kernel has stored is there for whoever acquires the word.
__device__ __forceinline__ void Tell(const ExchangeChannel& channel, int64_t sequence, int32_t rank) {
  int64_t* flag = channel.peers[rank].flag;
  // release, and cumulative: the stores of earlier kernels, which this one comes after, are ordered before it. The
  // peer's kernel, or the host's proxy, acquires it.
  if (flag != nullptr) SystemWord<int64_t>(*flag).store(sequence, ::cuda::memory_order_release);
  if (rank == 0 && channel.through_host) {
    SystemWord<int64_t>(channel.signals->posted.sequence).store(sequence, ::cuda::memory_order_release);
  }
}

// By one thread: until the message of `source` is here, or something else ends the wait.
__device__ bool WaitFor(const ExchangeChannel& channel, int64_t sequence, int32_t source) {
  const bool by_flag = channel.peers[source].flag != nullptr;
  // Acquires what the peer's kernel released, or what the host did for it.
  const SystemWord<int64_t> word(by_flag ? const_cast<int64_t&>(channel.flags[source]) : channel.signals->host.done);
  const uint64_t begin_ns = GlobalTimerNs();
  while (true) {
#pragma unroll 1
    for (int i = 0; i < kLooks; ++i) {
      if (word.load(::cuda::memory_order_acquire) >= sequence) return true;
    }
    const SignalError error = ErrorOf(channel);
    const bool late = static_cast<int64_t>(GlobalTimerNs() - begin_ns) > channel.timeout_ns;
    if (late || error == SignalError::kDeadline) {
      channel.missing[source] = 1;
      Fail(channel, SignalError::kDeadline, source, 0);
      return false;
    }
    if (error != SignalError::kNone) return false;
    // A volatile read needs no order.
    if (*const_cast<const volatile uint64_t*>(&channel.signals->host.stop) != 0) {
      Fail(channel, SignalError::kStopped, source, 0);
      return false;
    }
  }
}

// By the block: what the source must have sent, by the routes of the dispatch before.
__device__ ExpectedRows RowsFrom(const ExchangeArgs& args, int32_t source) {
  const MoeShape& shape = args.layout.shape;
  if (args.kind == ExchangeKind::kDispatch && args.round == 0) return {};
  ExpectedRows expected{.round = args.round, .rows = 0};
  if (args.kind == ExchangeKind::kDispatch || args.kind == ExchangeKind::kRedispatch) {
    const IndexRange rows = RowsInRound(shape, args.receive_route, source, args.round);
    expected.rows = rows.size();
    expected.first_row = rows.begin;
    return expected;
  }
  __shared__ int32_t count, first;
  if (threadIdx.x == 0) count = 0, first = INT32_MAX;
  __syncthreads();
  const IndexRange tokens = TokensInRound(shape, args.send_route, args.t_rows, args.round);
#pragma unroll 1
  for (int64_t t = tokens.begin + threadIdx.x; t < tokens.end; t += kThreads) {
    const int32_t index = args.send_route.index[t * shape.ranks + source];
    if (index < 0) continue;
    atomicAdd(&count, 1);
    atomicMin(&first, index);  // rows rise with tokens
  }
  __syncthreads();
  expected.rows = count;
  expected.first_row = first;
  return expected;
}

// By the block of a source whose message is here.
__device__ void CheckSource(const ExchangeArgs& args, int64_t sequence, int32_t source) {
  __shared__ MessageChecks checks;
  const MoeShape& shape = args.layout.shape;
  const void* slot = args.slots[(sequence & 1) * shape.ranks + source];
  MessageStamp stamp = args.stamp;
  stamp.sequence = sequence;
  if (args.part == ExchangePart::kFinish) stamp.signature = args.channel.state->signature;
  stamp.incarnation = args.channel.peers[source].incarnation;
  const MessageFault fault = CheckMessage(args.layout, slot, args.kind, stamp, RowsFrom(args, source), checks);
  if (fault != MessageFault::kNone) {
    if (threadIdx.x == 0) {
      Fail(args.channel, SignalError::kMessage, source, static_cast<int64_t>(fault));
    }
    return;
  }
  if (args.capacity == 0) return;
  // Every source tells its counts for every rank: all ranks see an overflow, and fail alike.
  const auto* expert_rows = At<uint32_t>(slot, args.layout.CountsOffset()) + shape.ranks;
#pragma unroll 1
  for (int32_t rank = threadIdx.x; rank < shape.ranks; rank += kThreads) {
    atomicAdd(reinterpret_cast<unsigned long long*>(args.channel.expert_rows + rank),
              static_cast<unsigned long long>(expert_rows[rank]));
  }
}

// By the last block.
__device__ void CheckCapacity(const ExchangeArgs& args) {
#pragma unroll 1
  for (int32_t rank = threadIdx.x; rank < args.layout.shape.ranks; rank += kThreads) {
    const int64_t rows = args.channel.expert_rows[rank];
    args.channel.expert_rows[rank] = 0;
    if (rows > args.capacity) Fail(args.channel, SignalError::kCapacity, rank, rows);
  }
}

// By one block: slow, but nothing is to be had any more.
__device__ void FillOutputs(const ExchangeArgs& args) {
#pragma unroll 1
  for (int32_t i = 0; i < args.output_count; ++i) {
    const FillRange& output = args.outputs[i];
    const int64_t words = output.bytes / static_cast<int64_t>(sizeof(uint32_t));
#pragma unroll 1
    for (int64_t j = threadIdx.x; j < words; j += kThreads) static_cast<uint32_t*>(output.begin)[j] = output.pattern;
    // Rows of 1 or 2 bytes an element need not end with a word.
    const int64_t rest = words * static_cast<int64_t>(sizeof(uint32_t)) + threadIdx.x;
    if (rest < output.bytes) static_cast<uint8_t*>(output.begin)[rest] = output.pattern >> 8 * (threadIdx.x % 4);
  }
}

// Whether this block is the last one of the launch; it sees what the others have done.
__device__ bool IsLastBlock(ChannelState& state) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    // acq_rel, with the same of the other blocks.
    const uint32_t before = DeviceWord<uint32_t>(state.blocks).fetch_add(1, ::cuda::memory_order_acq_rel);
    is_last = before + 1 == gridDim.x;
  }
  __syncthreads();
  return is_last;
}

// A block for each rank.
__global__ void __launch_bounds__(kThreads) ExchangeKernel(const __grid_constant__ ExchangeArgs args) {
  __shared__ bool goes_on;
  const ExchangeChannel& channel = args.channel;
  ChannelState& state = *channel.state;
  const auto rank = static_cast<int32_t>(blockIdx.x);
  const bool begins = args.part != ExchangePart::kFinish, finishes = args.part != ExchangePart::kBegin;
  const int64_t sequence = state.issued + (begins ? 1 : 0);
  if (threadIdx.x == 0) {
    goes_on = ErrorOf(channel) == SignalError::kNone;
    if (goes_on && *args.axis_rank != args.layout.shape.rank) {
      Fail(channel, SignalError::kRank, 0, *args.axis_rank);
      goes_on = false;
    } else if (goes_on && !IsInOrder(args, sequence)) {
      Fail(channel, SignalError::kOrder, 0, static_cast<int64_t>(args.part));
      goes_on = false;
    }
    if (goes_on && begins) Tell(channel, sequence, rank);
    if (goes_on && finishes) goes_on = WaitFor(channel, sequence, rank);
  }
  // The message that thread 0 has acquired is there for all threads of the block.
  __syncthreads();
  if (goes_on && finishes) CheckSource(args, sequence, rank);
  if (!IsLastBlock(state)) return;
  if (finishes && args.capacity != 0) CheckCapacity(args);
  __syncthreads();
  const bool failed = ErrorOf(channel) != SignalError::kNone;
  if (failed) FillOutputs(args);
  if (threadIdx.x != 0) return;
  if (failed) TellHost(channel, sequence);
  state.blocks = 0;
  state.issued = sequence;
  if (begins) state.signature = args.stamp.signature;
  if (finishes) state.finished = sequence;
  *args.token = static_cast<int32_t>(sequence);
}

__global__ void __launch_bounds__(kThreads)
    CheckElementsKernel(const __grid_constant__ ExchangeArgs args, const int32_t* dropped, int32_t elements) {
  if (ErrorOf(args.channel) != SignalError::kNone) return;
#pragma unroll 1
  for (int32_t b = threadIdx.x; b < elements; b += kThreads) {
    if (dropped[b] > 0) {
      Fail(args.channel, SignalError::kElementCapacity, b, dropped[b]);
    }
  }
  __syncthreads();
  if (ErrorOf(args.channel) == SignalError::kNone) return;
  FillOutputs(args);
  if (threadIdx.x == 0) TellHost(args.channel, args.channel.state->issued);
}

__global__ void BumpKernel(WatcherWord* word, const uint64_t* value) {
  // As in Tell; the host's watcher acquires it.
  SystemWord<uint64_t>(word->value).store(*value, ::cuda::memory_order_release);
}

}  // namespace

cudaError_t Exchange(const ExchangeArgs& args, cudaStream_t stream) {
  ExchangeKernel<<<args.layout.shape.ranks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t CheckElements(const ExchangeArgs& args, const int32_t* dropped, int32_t elements, cudaStream_t stream) {
  CheckElementsKernel<<<1, kThreads, 0, stream>>>(args, dropped, elements);
  return cudaGetLastError();
}

cudaError_t Bump(WatcherWord* word, const uint64_t* value, cudaStream_t stream) {
  BumpKernel<<<1, 1, 0, stream>>>(word, value);
  return cudaGetLastError();
}

cudaError_t LoadExchange() { return Load(ExchangeKernel, CheckElementsKernel, BumpKernel); }

}  // namespace jax_fabric::kernels::cuda
