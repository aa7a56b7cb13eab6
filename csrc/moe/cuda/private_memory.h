// Where the parts of one channel lie in memory of which only this rank's kernels and host know, and which recorded
// launches name: it stays where it is over all membership epochs.
#ifndef JAX_FABRIC_MOE_CUDA_PRIVATE_MEMORY_H_
#define JAX_FABRIC_MOE_CUDA_PRIVATE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/cuda/exchange.h"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::moe {

// Hands out parts aligned to 256 bytes; from null, it only counts them.
class Parts {
 public:
  explicit Parts(std::byte* base) : base_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    std::byte* part = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += kernels::AlignUp(count * static_cast<int64_t>(sizeof(T)), 256);
    return reinterpret_cast<T*>(part);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  int64_t bytes_ = 0;
};

// On the device.
struct PrivateMemory {
  kernels::ChannelState* state;
  kernels::cuda::ExchangePeer* peers;  // [N]
  int64_t* expert_rows;                // [N]
  int64_t* message_bytes;              // [N]
  uint8_t* absent;                     // [N]
  void** send_slots;                   // [2 N]
  void** receive_slots;                // [2 N]
  std::byte* workspace;

  PrivateMemory(Parts& parts, const kernels::SlotLayout& layout)
      : state(parts.Take<kernels::ChannelState>(1)),
        peers(parts.Take<kernels::cuda::ExchangePeer>(layout.shape.ranks)),
        expert_rows(parts.Take<int64_t>(layout.shape.ranks)),
        message_bytes(parts.Take<int64_t>(layout.shape.ranks)),
        absent(parts.Take<uint8_t>(layout.shape.ranks)),
        send_slots(parts.Take<void*>(2 * layout.shape.ranks)),
        receive_slots(parts.Take<void*>(2 * layout.shape.ranks)),
        // jax.vmap may fold as many batches into one call as it has rows.
        workspace(parts.Take<std::byte>(kernels::cuda::WorkspaceBytes(layout, layout.shape.max_tokens))) {}
};

// In host memory that the device has mapped; the same holds.
struct HostWords {
  kernels::ChannelSignals* signals;
  int64_t* message_bytes;  // [N]
  uint8_t* missing;        // [N]

  HostWords(Parts& parts, const kernels::SlotLayout& layout)
      : signals(parts.Take<kernels::ChannelSignals>(1)),
        message_bytes(parts.Take<int64_t>(layout.shape.ranks)),
        missing(parts.Take<uint8_t>(layout.shape.ranks)) {}
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_PRIVATE_MEMORY_H_
