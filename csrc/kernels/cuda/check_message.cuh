// CheckMessage (csrc/kernels/check_message.cc) by a block of threads.
#ifndef JAX_FABRIC_KERNELS_CUDA_CHECK_MESSAGE_CUH_
#define JAX_FABRIC_KERNELS_CUDA_CHECK_MESSAGE_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/message.cuh"
#include "csrc/kernels/message_checks.h"
#include "csrc/kernels/message_fault.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

// Shared by the block. Barriers are few: each of them is waited for while a message is there.
struct MessageChecks {
  uint32_t counts_fault, rows_fault;  // the lowest of all threads
  unsigned long long expert_rows;

  // By one thread; a barrier lies between it and CheckMessage.
  __device__ __forceinline__ void Begin() { counts_fault = rows_fault = UINT32_MAX, expert_rows = 0; }
  static __device__ __forceinline__ void Note(MessageFault fault, uint32_t& lowest) {
    if (fault != MessageFault::kNone) atomicMin(&lowest, static_cast<uint32_t>(fault));
  }
  // By whole warps. One after the other, additions of 8 bytes in shared memory take longer than all else of a check.
  __device__ __forceinline__ void AddExpertRows(unsigned long long rows) {
#pragma unroll 1
    for (int32_t i = kWarp / 2; i > 0; i /= 2) rows += __shfl_xor_sync(kAllLanes, rows, i);
    if (threadIdx.x % kWarp == 0 && rows > 0) atomicAdd(&expert_rows, rows);
  }
  static __device__ __forceinline__ MessageFault FaultOf(uint32_t lowest) {
    return lowest == UINT32_MAX ? MessageFault::kNone : static_cast<MessageFault>(lowest);
  }
};

// By each thread that wants to know, for itself.
__device__ __forceinline__ MessageFault CheckHeader(const SlotLayout& layout, const MessageHeader& header,
                                                    ExchangeKind kind, const MessageStamp& stamp,
                                                    const ExpectedRows& expected) {
  const MessageFault fault = CheckStamp(header, kind, stamp);
  return fault != MessageFault::kNone ? fault : CheckRowCount(layout.shape, header, expected);
}

// Whether there is nothing to check besides the header.
__device__ __forceinline__ bool IsPlain(ExchangeKind kind, const ExpectedRows& expected) {
  return kind != ExchangeKind::kDispatch || expected.round > 0;
}

// Of the first message of a dispatch: what must be right for its metadata to lie within the slot. By the block; all
// threads get the same answer.
__device__ inline MessageFault CheckCounts(const SlotLayout& layout, const MessageHeader& header, const void* slot,
                                           MessageChecks& checks) {
  const MoeShape& shape = layout.shape;
  const auto* counts = At<uint32_t>(slot, layout.CountsOffset());
  const auto* local_rows = At<uint32_t>(slot, layout.LocalRowsOffset());
  const uint32_t rows = counts[shape.rank];
#pragma unroll 1
  for (int32_t r = threadIdx.x; r < shape.ranks; r += blockDim.x) {
    checks.Note(CheckRankCounts(shape, counts[r], counts[shape.ranks + r]), checks.counts_fault);
  }
  unsigned long long expert_rows = 0;
#pragma unroll 1
  for (int32_t e = threadIdx.x; e < shape.experts_per_rank; e += blockDim.x) {
    if (local_rows[e] > rows) checks.Note(MessageFault::kExpertRows, checks.counts_fault);
    expert_rows += local_rows[e];
  }
  checks.AddExpertRows(expert_rows);
  if (threadIdx.x == 0) {
    if (counts[shape.ranks + shape.rank] != header.expert_rows) {
      checks.Note(MessageFault::kEntryCount, checks.counts_fault);
    }
    checks.Note(CheckRounds(shape, header, rows, At<uint32_t>(slot, layout.RoundRowsOffset())), checks.counts_fault);
    if (header.payload_offset != static_cast<uint64_t>(layout.DispatchPayloadOffset(rows, header.expert_rows))) {
      checks.Note(MessageFault::kPayloadOffset, checks.counts_fault);
    }
  }
  __syncthreads();
  const MessageFault fault = checks.FaultOf(checks.counts_fault);
  if (fault != MessageFault::kNone || checks.expert_rows == header.expert_rows) return fault;
  return MessageFault::kExpertRowsSum;
}

// The first message of a dispatch, by all threads of the block; all get the same answer. `stamp.incarnation` is the
// source's.
__device__ inline MessageFault CheckFirstMessage(const SlotLayout& layout, const void* slot, const MessageStamp& stamp,
                                                 MessageChecks& checks) {
  const MessageHeader header = LoadHeader(slot);
  MessageFault fault = CheckHeader(layout, header, ExchangeKind::kDispatch, stamp, {});
  if (fault != MessageFault::kNone) return fault;
  fault = CheckCounts(layout, header, slot, checks);
  if (fault != MessageFault::kNone) return fault;
  const int64_t rows = At<uint32_t>(slot, layout.CountsOffset())[layout.shape.rank];
  const auto* meta = At<RowMeta>(slot, layout.RowMetaOffset());
  const auto* entries = At<Entry>(slot, layout.EntriesOffset(rows));
#pragma unroll 1
  for (int64_t j = threadIdx.x; j < rows; j += blockDim.x) {
    checks.Note(CheckRow(layout.shape, header, rows, meta, entries, j), checks.rows_fault);
  }
  __syncthreads();
  return checks.FaultOf(checks.rows_fault);
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_CHECK_MESSAGE_CUH_
