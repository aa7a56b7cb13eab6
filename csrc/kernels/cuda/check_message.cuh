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
  // All but the rows of the messages of a decoding program, and more.
  static constexpr int64_t kHeadBytes = 4096;

  uint4 head[kHeadBytes / sizeof(uint4)];  // of the message
  uint32_t counts_fault, rows_fault;       // the lowest of all threads
  unsigned long long expert_rows;

  // By one thread; a barrier lies between it and the check.
  __device__ __forceinline__ void Begin() { counts_fault = rows_fault = UINT32_MAX, expert_rows = 0; }
  // By the block, which is together afterwards: copies the beginning of a message, at once, so that what follows from
  // each other in it does not wait for memory again and again.
  __device__ __forceinline__ void ReadHead(const void* slot, int64_t slot_bytes) {
#pragma unroll 1
    for (int32_t i = threadIdx.x; i * sizeof(uint4) < min(kHeadBytes, slot_bytes); i += blockDim.x) {
      head[i] = static_cast<const uint4*>(slot)[i];
    }
    __syncthreads();
  }
  // Where to read the first `bytes` of it.
  __device__ __forceinline__ const void* HeadOf(const void* slot, int64_t bytes) const {
    return bytes <= kHeadBytes ? head : slot;
  }
  // Rows to an expert each, by whole warps. Additions of 8 bytes in shared memory, one after the other, would take
  // longer than all else of a check.
  __device__ __forceinline__ void AddExpertRows(uint32_t rows) {
    const uint64_t low = __reduce_add_sync(kAllLanes, rows & 0xffff);
    const uint64_t high = __reduce_add_sync(kAllLanes, rows >> 16);
    if (threadIdx.x % kWarp == 0) atomicAdd(&expert_rows, (high << 16) + low);
  }
  static __device__ __forceinline__ void Note(MessageFault fault, uint32_t& lowest) {
    if (fault != MessageFault::kNone) atomicMin(&lowest, static_cast<uint32_t>(fault));
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

// Of the first message of a dispatch: what must be right for its metadata to lie within the slot. By the block, whole
// warps; all threads get the same answer.
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
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
#pragma unroll 1
  for (int32_t base = threadIdx.x - lane; base < shape.experts_per_rank; base += blockDim.x) {
    const uint32_t of_expert = base + lane < shape.experts_per_rank ? local_rows[base + lane] : 0;
    if (of_expert > rows) checks.Note(MessageFault::kExpertRows, checks.counts_fault);
    checks.AddExpertRows(of_expert);
  }
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
__device__ inline MessageFault CheckFirstMessage(const SlotLayout& layout, const void* slot, int64_t slot_bytes,
                                                 const MessageStamp& stamp, MessageChecks& checks) {
  checks.ReadHead(slot, slot_bytes);
  const MessageHeader header = LoadHeader(checks.head);
  MessageFault fault = CheckHeader(layout, header, ExchangeKind::kDispatch, stamp, {});
  if (fault != MessageFault::kNone) return fault;
  const void* counts = checks.HeadOf(slot, layout.RowMetaOffset());
  fault = CheckCounts(layout, header, counts, checks);
  if (fault != MessageFault::kNone) return fault;
  const int64_t rows = At<uint32_t>(counts, layout.CountsOffset())[layout.shape.rank];
  const void* metadata = checks.HeadOf(slot, static_cast<int64_t>(header.payload_offset));
  const auto* meta = At<RowMeta>(metadata, layout.RowMetaOffset());
  const auto* entries = At<Entry>(metadata, layout.EntriesOffset(rows));
#pragma unroll 1
  for (int64_t j = threadIdx.x; j < rows; j += blockDim.x) {
    checks.Note(CheckRow(layout.shape, header, rows, meta, entries, j), checks.rows_fault);
  }
  __syncthreads();
  return checks.FaultOf(checks.rows_fault);
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_CHECK_MESSAGE_CUH_
