#include <cstdint>
#include <cuda/atomic>

#include "csrc/kernels/cuda/check_message.cuh"
#include "csrc/kernels/cuda/dependent_launch.cuh"
#include "csrc/kernels/cuda/exchange.h"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/tell.cuh"
#include "csrc/kernels/rounds.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {
namespace {

// Of a block, which checks a message: of few rows, and of many.
constexpr uint32_t kThreads = 256, kMostThreads = 1024;
constexpr int64_t kFewRows = 512;
// Looks at a word for which a kernel waits, between two looks at what else might end its wait.
constexpr int kLooks = 32;

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

// By one thread of each block; all find the same: what keeps this exchange from being begun or finished now, or kNone.
__device__ SignalError Hindrance(const ExchangeArgs& args, const ChannelState& state, int64_t sequence,
                                 int32_t axis_rank, int32_t ticket) {
  if (state.error != SignalError::kNone) return state.error;
  if (axis_rank != args.layout.shape.rank) return SignalError::kRank;
  const bool is_begun = state.issued == state.finished + 1;
  if (args.part == ExchangePart::kFinish) {
    return is_begun && ticket == static_cast<int32_t>(sequence) ? SignalError::kNone : SignalError::kNotBegun;
  }
  if (args.round > 0 && state.refused != 0) return SignalError::kNotBegun;  // its first round was
  return is_begun ? SignalError::kNotDone : SignalError::kNone;
}

// By one thread: until the message of `source` is here, or something else ends the wait. `flag`: by the source, or
// null. `slot`: where its message goes.
__device__ bool WaitFor(const ExchangeChannel& channel, int64_t sequence, int32_t source, const int64_t* flag,
                        const void* slot) {
  const ChannelSignals::HostLine& host = channel.host != nullptr ? *channel.host : channel.signals->host;
  // Acquires what the peer's kernel released, or what the host did for it.
  const SystemWord<int64_t> word(const_cast<int64_t&>(flag != nullptr ? *flag : host.done));
  const uint64_t begin_ns = GlobalTimerNs();
  while (true) {
#pragma unroll 1
    for (int i = 0; i < kLooks; ++i) {
      if (word.load(::cuda::memory_order_acquire) >= sequence) return true;
    }
    const SignalError error = ErrorOf(channel);
    const bool late = static_cast<int64_t>(GlobalTimerNs() - begin_ns) > channel.timeout_ns;
    if (late || error == SignalError::kDeadline) {
      // The host tells of all messages at once. A late one may be coming right now: this only chooses words.
      const auto* header = static_cast<const volatile MessageHeader*>(slot);
      channel.missing[source] = flag != nullptr || header->sequence != sequence;
      Fail(channel, SignalError::kDeadline, source, 0);
      return false;
    }
    if (error != SignalError::kNone) return false;
    // A volatile read needs no order.
    if (*const_cast<const volatile uint64_t*>(&host.stop) != 0) {
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
  for (int64_t t = tokens.begin + threadIdx.x; t < tokens.end; t += blockDim.x) {
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

// By the block of a rank that takes no part: what a receive kernel finds of it (empty_message.h).
__device__ void WriteEmptyMessage(const ExchangeArgs& args, const MessageStamp& stamp, void* slot) {
  const bool with_metadata = args.kind == ExchangeKind::kDispatch && args.round == 0;
  const int64_t payload_offset =
      with_metadata ? args.layout.DispatchPayloadOffset(0, 0) : args.layout.PlainPayloadOffset();
  ZeroWords(slot, sizeof(MessageHeader), args.layout.RowMetaOffset(), threadIdx.x, blockDim.x);
  if (threadIdx.x != 0) return;
  WriteHeader(stamp, args.kind, {.rounds = with_metadata ? 1 : 0, .payload_offset = payload_offset}, slot);
}

// By the block of a source: waits for its message and checks it. All threads get the same answer: whether it can be
// used.
__device__ bool Receive(const ExchangeArgs& args, const ChannelEpoch& epoch, int64_t sequence, int32_t source,
                        const ExchangePeer& peer, void* slot, int64_t slot_bytes) {
  __shared__ MessageChecks checks;
  __shared__ bool arrived;
  __shared__ uint32_t plain_fault;
  const MoeShape& shape = args.layout.shape;
  MessageStamp stamp = args.stamp;
  stamp.sequence = sequence;
  stamp.incarnation = peer.incarnation;
  stamp.membership_epoch = epoch.membership_epoch;
  if (args.part == ExchangePart::kFinish) stamp.signature = args.channel.state->signature;
  if (peer.absent) {
    WriteEmptyMessage(args, stamp, slot);
    return true;
  }
  // All that can be known before the message is here.
  const ExpectedRows expected = RowsFrom(args, source);
  const bool is_plain = IsPlain(args.kind, expected);
  if (threadIdx.x == 0) {
    checks.Begin();
    arrived = WaitFor(args.channel, sequence, source, peer.flag != nullptr ? epoch.flags + source : nullptr, slot);
    MessageFault fault = MessageFault::kNone;
    if (arrived && is_plain) {
      const MessageHeader header = LoadHeader(slot);
      fault = CheckHeader(args.layout, header, args.kind, stamp, expected);
      if (fault == MessageFault::kNone) fault = CheckPlain(args.layout, header, args.kind);
    }
    plain_fault = static_cast<uint32_t>(fault);
  }
  // What thread 0 has acquired is there for all threads of the block.
  __syncthreads();
  if (!arrived) return false;
  const MessageFault fault = is_plain ? static_cast<MessageFault>(plain_fault)
                                      : CheckFirstMessage(args.layout, slot, slot_bytes, stamp, checks);
  if (fault != MessageFault::kNone) {
    if (threadIdx.x == 0) Fail(args.channel, SignalError::kMessage, source, static_cast<int64_t>(fault));
    return false;
  }
  if (args.capacity == 0) return true;
  // Every source tells its counts for every rank: all ranks see an overflow, and fail alike.
  const auto* expert_rows = At<uint32_t>(slot, args.layout.CountsOffset()) + shape.ranks;
#pragma unroll 1
  for (int32_t rank = threadIdx.x; rank < shape.ranks; rank += blockDim.x) {
    atomicAdd(reinterpret_cast<unsigned long long*>(args.channel.expert_rows + rank),
              static_cast<unsigned long long>(expert_rows[rank]));
  }
  return true;
}

// By the last block.
__device__ void CheckCapacity(const ExchangeArgs& args) {
#pragma unroll 1
  for (int32_t rank = threadIdx.x; rank < args.layout.shape.ranks; rank += blockDim.x) {
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
    for (int64_t j = threadIdx.x; j < words; j += blockDim.x) static_cast<uint32_t*>(output.begin)[j] = output.pattern;
    // Rows of 1 or 2 bytes an element need not end with a word.
    const int64_t rest = words * static_cast<int64_t>(sizeof(uint32_t)) + threadIdx.x;
    if (rest < output.bytes) static_cast<uint8_t*>(output.begin)[rest] = output.pattern >> 8 * (threadIdx.x % 4);
  }
}

// How many blocks are through, and how many of those have failed, in one word.
constexpr uint32_t kFailedBlock = 1u << 16;

// By all threads of a block, with the same `failed`; they get the same answers. Whether this block is the last one of
// the launch, which sees what the others have done; and then in `failed`, whether any block has.
__device__ bool IsLastBlock(ChannelState& state, bool& failed) {
  __shared__ uint32_t before;
  __syncthreads();
  if (gridDim.x == 1) return true;
  if (threadIdx.x == 0) {
    // acq_rel, with the same of the other blocks.
    before = DeviceWord<uint32_t>(state.blocks).fetch_add(failed ? kFailedBlock + 1 : 1, ::cuda::memory_order_acq_rel);
  }
  __syncthreads();
  failed = failed || before >= kFailedBlock;
  return before % kFailedBlock + 1 == gridDim.x;
}

// By one thread, when all others are through: the call that comes here ends nothing, and leaves the channel as it was.
__device__ void Refuse(const ExchangeArgs& args) {
  ChannelState& state = *args.channel.state;
  state.refused = 1;
  state.blocks = 0;
  *args.token = args.part == ExchangePart::kFinish ? *args.ticket : static_cast<int32_t>(state.issued);
  if (args.part != ExchangePart::kFinish) return;  // the host knows it from the first round
  auto& line = args.channel.signals->refused;
  line.ticket = *args.ticket;
  // release; the host acquires it.
  SystemWord<int64_t>(line.count).store(line.count + 1, ::cuda::memory_order_release);
}

// By one thread, when all others are through.
__device__ void EndExchange(const ExchangeArgs& args, int64_t sequence, bool failed) {
  ChannelState& state = *args.channel.state;
  if (failed) TellHost(args.channel, sequence);
  state.blocks = 0;
  state.refused = 0;
  state.issued = sequence;
  if (args.part != ExchangePart::kFinish) state.signature = args.stamp.signature;
  if (args.part != ExchangePart::kBegin) state.finished = sequence;
  *args.token = static_cast<int32_t>(sequence);
}

// A block for each rank.
__global__ void __launch_bounds__(kMostThreads)
    ExchangeKernel(const __grid_constant__ ExchangeArgs args, int64_t slot_bytes) {
  // A send kernel that has told the peers changes nothing of what is read first: that need not wait for its end.
  if (!args.told) AwaitKernelBefore();
  const KernelTimer timer(args.times);
  __shared__ SignalError hindrance;
  const ExchangeChannel& channel = args.channel;
  const auto rank = static_cast<int32_t>(blockIdx.x);
  const bool finishes = args.part != ExchangePart::kBegin;
  const ChannelState state = LoadState<true>(channel.state);
  const ExchangePeer peer = channel.peers[rank];
  const int64_t sequence = state.issued + (args.part != ExchangePart::kFinish ? 1 : 0);
  void* const slot = finishes ? args.slots[(sequence & 1) * args.layout.shape.ranks + rank] : nullptr;
  if (threadIdx.x == 0) {
    hindrance = Hindrance(args, state, sequence, __ldcg(args.axis_rank), args.ticket != nullptr ? *args.ticket : 0);
  }
  if (args.told) AwaitKernelBefore();
  __syncthreads();
  bool failed = hindrance != SignalError::kNone;
  const bool refused = hindrance == SignalError::kNotBegun;
  if (threadIdx.x == 0) {
    if (!failed && args.part != ExchangePart::kFinish && !args.told) {
      Tell(sequence, peer.flag, rank == 0 && channel.through_host ? &channel.signals->posted.sequence : nullptr);
    }
    if (hindrance == SignalError::kRank) Fail(channel, hindrance, 0, *args.axis_rank);
    if (hindrance == SignalError::kNotDone) Fail(channel, hindrance, 0, 0);
  }
  if (!failed && finishes) failed = !Receive(args, state.epoch, sequence, rank, peer, slot, slot_bytes);
  LetNextKernelBegin();  // no earlier: see there
  if (!IsLastBlock(*channel.state, failed)) return;
  if (finishes && args.capacity != 0 && !refused) {
    CheckCapacity(args);
    __syncthreads();
    failed = ErrorOf(channel) != SignalError::kNone;
  }
  if (failed) FillOutputs(args);
  if (threadIdx.x != 0) return;
  if (refused) {
    Refuse(args);
  } else {
    EndExchange(args, sequence, failed);
  }
}

__global__ void __launch_bounds__(kThreads)
    CheckElementsKernel(const __grid_constant__ ExchangeArgs args, const int32_t* dropped, int32_t elements) {
  if (ErrorOf(args.channel) != SignalError::kNone) return;
#pragma unroll 1
  for (int32_t b = threadIdx.x; b < elements; b += blockDim.x) {
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
  const MoeShape& shape = args.layout.shape;
  const int64_t usual_rows = int64_t{shape.max_tokens} * shape.top_k / shape.ranks;
  const uint32_t threads = usual_rows > kFewRows ? kMostThreads : kThreads;
  return LaunchDependent(true, ExchangeKernel, shape.ranks, threads, 0, stream, args, args.layout.SlotBytes());
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
