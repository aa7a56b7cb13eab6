#include <cstdint>

#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/kernel_timer.cuh"
#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/send_row.cuh"
#include "csrc/kernels/cuda/send_rows.cuh"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels::cuda {
namespace {

// On a multiprocessor at once: a block waits for its token's places, then for its row. 135 us with as many as the
// registers let otherwise (2), 114 with 4, for a prompt of 4,096 tokens.
constexpr int kBlocks = 4;

// By the first warp of the block. There is room for a place in each message.
__device__ int FindPlaces(const SendRowsArgs& args, void* const* slots, int64_t t, char** rows) {
  const int lane = threadIdx.x;
  int count = 0;
#pragma unroll 1
  for (int64_t base = 0; base < args.shape.ranks; base += kWarp) {
    const int64_t rank = base + lane;
    int64_t row = -1;
    if (rank < args.shape.ranks) {
      row = IndexBelow(args.route.index[t * args.shape.ranks + rank], args.shape.max_tokens);
      if (row >= 0 && args.first_rows != nullptr) row -= args.first_rows[rank];
    }
    const bool goes = row >= 0 && row < args.shape.MessageRows();
    const uint32_t going = __ballot_sync(kAllLanes, goes);
    if (goes) {
      const int64_t payload = args.payload_offsets != nullptr ? args.payload_offsets[rank] : args.plain_payload_offset;
      rows[count + __popc(going & ((1u << lane) - 1))] = At<char>(slots[rank], payload + row * args.format.stride);
    }
    count += __popc(going);
  }
  return count;
}

// A block for each token.
template <int kCount>
__global__ void __launch_bounds__(kSendThreads, kBlocks)
    SendRowsKernel(const __grid_constant__ SendRowsArgs args, KernelRun run) {
  const KernelTimer timer(run.times);
  if (HasFailed(run)) return;
  extern __shared__ char* rows[];
  __shared__ int count;
  const IndexRange tokens = TokensInRound(args.shape, args.route, args.t_rows, args.round);
  const int64_t t = blockIdx.x;
  if (t < tokens.begin || t >= tokens.end) return;
  if (threadIdx.x < kWarp) {
    const int found = FindPlaces(args, SendSlots(run, args.slots, args.shape.ranks), t, rows);
    if (threadIdx.x == 0) count = found;
  }
  __syncthreads();
  const Places places{rows, count};
  if (count == 0) return;
  SendRow<kCount>(args.format, args.source, places, t);
  SendRest(args.format, args.source, places, t);
}

}  // namespace

cudaError_t LaunchSendRows(const SendRowsArgs& args, const LaunchOptions& options) {
  if (args.t_rows == 0) return cudaSuccess;
  const size_t shared_bytes = sizeof(char*) * args.shape.ranks;
  if (IsVectorised(args.format.hidden)) {
    SendRowsKernel<kVector><<<args.t_rows, kSendThreads, shared_bytes, options.stream>>>(args, options.run());
  } else {
    SendRowsKernel<1><<<args.t_rows, kSendThreads, shared_bytes, options.stream>>>(args, options.run());
  }
  return cudaGetLastError();
}

cudaError_t LoadSendRows() { return Load(SendRowsKernel<kVector>, SendRowsKernel<1>); }

}  // namespace jax_fabric::kernels::cuda
