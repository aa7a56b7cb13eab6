#include <cstdint>
#include <cuda/atomic>

#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/signal_kernels.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {
namespace {

// Words that the host, too, reads or writes.
template <typename T>
using SystemWord = ::cuda::atomic_ref<T, ::cuda::thread_scope_system>;

// Keeps the first error of the channel. The host acquires the sequence.
__device__ void Fail(ChannelSignals* signals, ChannelState* state, int64_t sequence, SignalError error) {
  if (state->error != SignalError::kNone) return;
  state->error = error;
  signals->error.error = error;
  SystemWord<int64_t>(signals->error.sequence).store(sequence, ::cuda::memory_order_release);
}

__global__ void TicketKernel(ChannelState* state, int32_t* token) { *token = static_cast<int32_t>(++state->issued); }

__global__ void PostKernel(const __grid_constant__ PostArgs args) {
  const int64_t sequence = *args.ticket;
  if (sequence <= args.state->posted) {
    if (sequence < args.state->posted - 1) Fail(args.signals, args.state, sequence, SignalError::kStale);
    return;
  }
  args.state->posted = sequence;
  TriggerRecord& record = args.signals->RecordOf(sequence);
  record.kind = args.record.kind;
  record.round = args.record.round;
  for (int i = 0; i < 6; ++i) record.arguments[i] = args.record.arguments[i];
  // Cumulative: earlier kernels' stores, which this one comes after, are ordered before it. The host acquires it.
  SystemWord<int64_t>(record.sequence).store(sequence, ::cuda::memory_order_release);
}

__global__ void WaitKernel(const __grid_constant__ WaitArgs args) {
  if (args.state->error != SignalError::kNone) return;
  const int64_t sequence = *args.ticket;
  const uint64_t begin_ns = GlobalTimerNs();
  // Acquires what the host released; a volatile read of `abort` needs no order.
  while (SystemWord<int64_t>(args.signals->done.sequence).load(::cuda::memory_order_acquire) < sequence) {
    if (*const_cast<const volatile uint64_t*>(&args.abort->value) != 0) {
      return Fail(args.signals, args.state, sequence, SignalError::kAborted);
    }
    if (static_cast<int64_t>(GlobalTimerNs() - begin_ns) > args.timeout_ns) {
      return Fail(args.signals, args.state, sequence, SignalError::kDeadline);
    }
  }
}

__global__ void BumpKernel(WatcherWord* word, const uint64_t* value) {
  // As in PostKernel; the host's watcher acquires it.
  SystemWord<uint64_t>(word->value).store(*value, ::cuda::memory_order_release);
}

}  // namespace

cudaError_t Ticket(ChannelState* state, int32_t* token, cudaStream_t stream) {
  TicketKernel<<<1, 1, 0, stream>>>(state, token);
  return cudaGetLastError();
}

cudaError_t Post(const PostArgs& args, cudaStream_t stream) {
  PostKernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t Wait(const WaitArgs& args, cudaStream_t stream) {
  WaitKernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t Bump(WatcherWord* word, const uint64_t* value, cudaStream_t stream) {
  BumpKernel<<<1, 1, 0, stream>>>(word, value);
  return cudaGetLastError();
}

cudaError_t LoadSignalKernels() { return Load(TicketKernel, PostKernel, WaitKernel, BumpKernel); }

}  // namespace jax_fabric::kernels::cuda
