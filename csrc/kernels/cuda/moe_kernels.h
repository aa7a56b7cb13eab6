// The kernels of csrc/kernels/moe_kernels.h as launches on a CUDA stream: the same arguments, results and messages.
//
// All pointers, those in `slots` and `message_bytes` included, are to memory that the device can reach; arrays are
// aligned to 16 bytes, slots to 256. Launches allocate nothing and wait for nothing; a stream that is being captured
// records them. Receive kernels rely on messages that CheckMessage accepts (exchange.h).
//
// Sums have the bits of the CPU kernels: the same order, and no fused multiply-add. `cache_bytes` means nothing here.
#ifndef JAX_FABRIC_KERNELS_CUDA_MOE_KERNELS_H_
#define JAX_FABRIC_KERNELS_CUDA_MOE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/cuda/tell.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {

// Nanoseconds of the device's global timer. Blocks share a few places: one for all would make them wait for each other,
// for longer than some kernels take.
struct KernelTimes {
  struct alignas(32) Place {
    uint64_t first_begin_ns = UINT64_MAX;  // of the first block
    uint64_t last_end_ns = 0;              // of the last one, its stores included
  };
  static constexpr uint32_t kPlaces = 128;
  Place places[kPlaces];

  int64_t duration_ns() const {
    Place all;
    for (const Place& place : places) {
      if (place.first_begin_ns < all.first_begin_ns) all.first_begin_ns = place.first_begin_ns;
      if (place.last_end_ns > all.last_end_ns) all.last_end_ns = place.last_end_ns;
    }
    return static_cast<int64_t>(all.last_end_ns - all.first_begin_ns);
  }
};

// What all kernels of a launch have besides their arguments.
struct KernelRun {
  KernelTimes* times;
  const ChannelState* channel;
};
struct SendRun : KernelRun {
  Teller tell;
};

struct LaunchOptions {
  cudaStream_t stream = nullptr;
  // WorkspaceBytes() of memory, aligned to 256, for this launch alone until it has run.
  void* workspace = nullptr;
  // Of the device: how many blocks it runs at once is a multiple of it.
  int32_t multiprocessors = 132;
  // Of receive kernels: where slot i lies, if that is `first_slot + i * SlotBytes()` for all of them; saves reading
  // `slots`, on the device's slowest way. Null: they lie anywhere.
  const void* first_slot = nullptr;
  // Dispatch in one launch, where it can be (fused_dispatch.h). Results are the same.
  bool fused = true;
  // On the device, or null: what the launched kernels widen. For benchmarks.
  KernelTimes* times = nullptr;
  // On the device, or null. With it, the exchange's number is what the channel says, and so is all that ChannelEpoch
  // has, whatever stamp, `absent` and `first_slot` say: `slots` have 2 N entries, those of odd exchanges behind those
  // of even ones, and nothing is done once the channel has failed.
  const ChannelState* channel = nullptr;
  // Of send kernels, with `channel`: whom they tell.
  Teller tell;

  KernelRun run() const { return {times, channel}; }
  SendRun send_run() const { return {run(), tell}; }
  // Of receive kernels: what runs before them is the exchange kernel, which knows them (dependent_launch.cuh).
  bool follows_exchange() const { return channel != nullptr; }
};

// Enough for each of the launches with this layout. `elements`: of DispatchReceiveArgs.
int64_t WorkspaceBytes(const SlotLayout& layout, int32_t elements = 1);

// Loads the kernels: so that no launch does, which a running kernel could make wait.
cudaError_t LoadKernels();

cudaError_t DispatchSend(const DispatchSendArgs& args, const LaunchOptions& options);
cudaError_t DispatchReceive(const DispatchReceiveArgs& args, const LaunchOptions& options);
cudaError_t CombineSend(const CombineSendArgs& args, const LaunchOptions& options);
cudaError_t CombineReceive(const CombineReceiveArgs& args, const LaunchOptions& options);
cudaError_t RedispatchSend(const RedispatchSendArgs& args, const LaunchOptions& options);
cudaError_t RedispatchReceive(const RedispatchReceiveArgs& args, const LaunchOptions& options);

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_MOE_KERNELS_H_
