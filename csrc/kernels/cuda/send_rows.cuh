// Rows of tokens into the messages of this rank, along a route: the moving half of dispatch and redispatch.
#ifndef JAX_FABRIC_KERNELS_CUDA_SEND_ROWS_CUH_
#define JAX_FABRIC_KERNELS_CUDA_SEND_ROWS_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/cuda/dependent_launch.cuh"
#include "csrc/kernels/cuda/elements.cuh"
#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/cuda/send_row.cuh"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels::cuda {

struct SendRowsArgs {
  RowFormat format;
  MoeShape shape;
  int32_t round = 0;
  int32_t t_rows = 0;
  RowSource source;
  SendRoute route;
  void* const* slots = nullptr;
  // [N] where the rows begin in the message to each rank; null: PlainPayloadOffset
  const int64_t* payload_offsets = nullptr;
  // [N] row of the route that comes first in the message to each rank; null: 0
  const int32_t* first_rows = nullptr;
  int64_t plain_payload_offset = 0;
};

// On a multiprocessor at once: a block waits for its token's places, then for its row. 135 us with as many as the
// registers let otherwise (2), 114 with 4, for a prompt of 4,096 tokens.
inline constexpr int kSendBlocks = 4;

// By the first warp of the block. There is room for a place in each message.
__device__ inline int FindPlaces(const SendRowsArgs& args, void* const* slots, int64_t t, char** rows) {
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

inline size_t SendRowsSharedBytes(const MoeShape& shape) { return sizeof(char*) * shape.ranks; }

// By a block of kSendThreads, with SendRowsSharedBytes of shared memory: the row of token t, if it travels now. kUsual:
// IsUsualRow.
template <int kCount, bool kUsual>
__device__ __forceinline__ void SendRowsOfToken(const SendRowsArgs& args, void* const* slots, int64_t t, char** rows) {
  __shared__ int count;
  const IndexRange tokens = TokensInRound(args.shape, args.route, args.t_rows, args.round);
  if (t < tokens.begin || t >= tokens.end) return;
  [[maybe_unused]] UsualRow row;
  // It is read while the block finds out where it goes, or while the kernel before it does.
  if constexpr (kUsual) {
    row.Load(args.format, UsualSource(), static_cast<const uint16_t*>(args.source.x) + t * args.format.hidden, 0);
  }
  AwaitKernelBefore();
  if (threadIdx.x < kWarp) {
    const int found = FindPlaces(args, slots, t, rows);
    if (threadIdx.x == 0) count = found;
  }
  __syncthreads();
  const Places places{rows, count};
  if (count == 0) return;
  if constexpr (kUsual) {
    row.Send(args.format, UsualSource(), places, 0);
  } else {
    SendRow<kCount>(args.format, args.source, places, t);
  }
  SendRest(args.format, args.source, places, t);
}

cudaError_t LaunchSendRows(const SendRowsArgs& args, const LaunchOptions& options);

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_SEND_ROWS_CUH_
