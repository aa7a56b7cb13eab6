// CheckMessage (csrc/kernels/check_message.cc) by a block of threads.
#ifndef JAX_FABRIC_KERNELS_CUDA_CHECK_MESSAGE_CUH_
#define JAX_FABRIC_KERNELS_CUDA_CHECK_MESSAGE_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/message_checks.h"
#include "csrc/kernels/message_fault.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

// Shared by the block.
struct MessageChecks {
  uint32_t first_fault;
  unsigned long long expert_rows;

  __device__ __forceinline__ void Begin() {
    if (threadIdx.x == 0) first_fault = UINT32_MAX, expert_rows = 0;
    __syncthreads();
  }
  __device__ __forceinline__ void Note(MessageFault fault) {
    if (fault != MessageFault::kNone) atomicMin(&first_fault, static_cast<uint32_t>(fault));
  }
  // What all threads have noted so far.
  __device__ __forceinline__ MessageFault Sum() {
    __syncthreads();
    const uint32_t fault = first_fault;
    __syncthreads();
    return fault == UINT32_MAX ? MessageFault::kNone : static_cast<MessageFault>(fault);
  }
};

// Of the first message of a dispatch: what must be right for its metadata to lie within the slot.
__device__ inline void CheckCounts(const SlotLayout& layout, const void* slot, MessageChecks& checks) {
  const MoeShape& shape = layout.shape;
  const MessageHeader& header = HeaderOf(slot);
  const auto* counts = At<uint32_t>(slot, layout.CountsOffset());
  const auto* local_rows = At<uint32_t>(slot, layout.LocalRowsOffset());
  const uint32_t rows = counts[shape.rank];
#pragma unroll 1
  for (int32_t r = threadIdx.x; r < shape.ranks; r += blockDim.x) {
    checks.Note(CheckRankCounts(shape, counts[r], counts[shape.ranks + r]));
  }
#pragma unroll 1
  for (int32_t e = threadIdx.x; e < shape.experts_per_rank; e += blockDim.x) {
    if (local_rows[e] > rows) checks.Note(MessageFault::kExpertRows);
    atomicAdd(&checks.expert_rows, static_cast<unsigned long long>(local_rows[e]));
  }
  if (threadIdx.x == 0) {
    if (counts[shape.ranks + shape.rank] != header.expert_rows) checks.Note(MessageFault::kEntryCount);
    checks.Note(CheckRounds(shape, header, rows, At<uint32_t>(slot, layout.RoundRowsOffset())));
    if (header.payload_offset != static_cast<uint64_t>(layout.DispatchPayloadOffset(rows, header.expert_rows))) {
      checks.Note(MessageFault::kPayloadOffset);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && checks.expert_rows != header.expert_rows) checks.Note(MessageFault::kExpertRowsSum);
}

// By all threads of the block; all get the same answer. `stamp.incarnation` is the source's.
__device__ inline MessageFault CheckMessage(const SlotLayout& layout, const void* slot, ExchangeKind kind,
                                            const MessageStamp& stamp, const ExpectedRows& expected,
                                            MessageChecks& checks) {
  const MoeShape& shape = layout.shape;
  const MessageHeader& header = HeaderOf(slot);
  checks.Begin();
  if (threadIdx.x == 0) {
    checks.Note(CheckStamp(header, kind, stamp));
    checks.Note(CheckRowCount(shape, header, expected));
  }
  MessageFault fault = checks.Sum();
  if (fault != MessageFault::kNone) return fault;
  if (kind != ExchangeKind::kDispatch || expected.round > 0) return CheckPlain(layout, header, kind);
  CheckCounts(layout, slot, checks);
  fault = checks.Sum();
  if (fault != MessageFault::kNone) return fault;
  const int64_t rows = At<uint32_t>(slot, layout.CountsOffset())[shape.rank];
  const auto* meta = At<RowMeta>(slot, layout.RowMetaOffset());
  const auto* entries = At<Entry>(slot, layout.EntriesOffset(rows));
#pragma unroll 1
  for (int64_t j = threadIdx.x; j < rows; j += blockDim.x) {
    checks.Note(CheckRow(shape, header, rows, meta, entries, j));
  }
  return checks.Sum();
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_CHECK_MESSAGE_CUH_
