#include <cstdint>

#include "csrc/kernels/cuda/dependent_launch.cuh"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/send_rows.cuh"
#include "csrc/kernels/cuda/tell.cuh"

namespace jax_fabric::kernels::cuda {
namespace {

// A block for each token.
template <int kCount>
__global__ void __launch_bounds__(kSendThreads, kSendBlocks)
    SendRowsKernel(const __grid_constant__ SendRowsArgs args, const __grid_constant__ SendRun run) {
  LetNextKernelBegin();
  const KernelTimer timer(run.times);
  const ChannelState channel = StateOf(run);
  BeginToTell(run.tell, channel);
  if (args.round == 0 ? HasFailed(channel) : HasNothing(channel)) return;
  extern __shared__ char* places[];  // [N]
  SendRowsOfToken<kCount, false>(args, SendSlots(run, channel, args.slots, args.shape.ranks), blockIdx.x, places);
  TellWhenLast(run.tell);
}

}  // namespace

cudaError_t LaunchSendRows(const SendRowsArgs& args, const LaunchOptions& options) {
  if (args.t_rows == 0) return cudaSuccess;
  const size_t shared_bytes = SendRowsSharedBytes(args.shape);
  if (IsVectorised(args.format.hidden)) {
    SendRowsKernel<kVector><<<args.t_rows, kSendThreads, shared_bytes, options.stream>>>(args, options.send_run());
  } else {
    SendRowsKernel<1><<<args.t_rows, kSendThreads, shared_bytes, options.stream>>>(args, options.send_run());
  }
  return cudaGetLastError();
}

cudaError_t LoadSendRows() { return Load(SendRowsKernel<kVector>, SendRowsKernel<1>); }

}  // namespace jax_fabric::kernels::cuda
