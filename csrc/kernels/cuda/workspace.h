// What the launches of one kernel hand to each other.
#ifndef JAX_FABRIC_KERNELS_CUDA_WORKSPACE_H_
#define JAX_FABRIC_KERNELS_CUDA_WORKSPACE_H_

#include <cstdint>

#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

// Hands out parts of a workspace; with null, only counts.
class WorkspaceParts {
 public:
  explicit WorkspaceParts(void* workspace) : base_(static_cast<char*>(workspace)) {}

  template <typename T>
  T* Take(int64_t count) {
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += AlignUp(count * static_cast<int64_t>(sizeof(T)), 256);
    return part;
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

// Of dispatch's send kernel.
struct DispatchSendWorkspace {
  int32_t* row_tokens;       // [N, T] token of each row to each rank
  int32_t* entry_begins;     // [N, T] where the entries of each row begin
  int32_t* rows;             // [N]
  int32_t* expert_rows;      // [N]
  int32_t* first_round;      // [N] rows in the first round
  int32_t* round_begins;     // [N] first row of a round
  int64_t* payload_offsets;  // [N]
  uint32_t* local_rows;      // [N, experts_per_rank]

  DispatchSendWorkspace(WorkspaceParts& parts, const MoeShape& shape) {
    const int64_t ranks = shape.ranks;
    row_tokens = parts.Take<int32_t>(ranks * shape.max_tokens);
    entry_begins = parts.Take<int32_t>(ranks * shape.max_tokens);
    rows = parts.Take<int32_t>(ranks);
    expert_rows = parts.Take<int32_t>(ranks);
    first_round = parts.Take<int32_t>(ranks);
    round_begins = parts.Take<int32_t>(ranks);
    payload_offsets = parts.Take<int64_t>(ranks);
    local_rows = parts.Take<uint32_t>(ranks * shape.experts_per_rank);
  }
};

// Of dispatch's receive kernel. G = elements * experts_per_rank groups.
struct DispatchReceiveWorkspace {
  int32_t* counts;   // [G, N] rows of a group from each source
  int32_t* numbers;  // [N, T * L] of each entry among those of its source and group
  int32_t* begins;   // [G, N] position of the first of them
  int32_t* totals;   // [elements] rows of all groups, those past the capacity included

  DispatchReceiveWorkspace(WorkspaceParts& parts, const MoeShape& shape, int32_t elements) {
    const int64_t groups = static_cast<int64_t>(elements) * shape.experts_per_rank;
    counts = parts.Take<int32_t>(groups * shape.ranks);
    numbers = parts.Take<int32_t>(int64_t{shape.ranks} * shape.max_tokens * shape.LocalTopK());
    begins = parts.Take<int32_t>(groups * shape.ranks);
    totals = parts.Take<int32_t>(elements);
  }
};

// Of redispatch, both ways.
struct RedispatchWorkspace {
  int32_t* first_rows;  // [N]
  int32_t* used;        // [1] rows of the results that rows go to

  RedispatchWorkspace(WorkspaceParts& parts, const MoeShape& shape) {
    first_rows = parts.Take<int32_t>(shape.ranks);
    used = parts.Take<int32_t>(1);
  }
};

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_WORKSPACE_H_
