#ifndef JAX_FABRIC_KERNELS_CUDA_TELL_CUH_
#define JAX_FABRIC_KERNELS_CUDA_TELL_CUH_

#include <cstdint>
#include <cuda/atomic>

#include "csrc/kernels/cuda/grid.h"
#include "csrc/kernels/cuda/tell.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {

// Words that peers or the host, too, read or write.
template <typename T>
using SystemWord = ::cuda::atomic_ref<T, ::cuda::thread_scope_system>;
template <typename T>
using DeviceWord = ::cuda::atomic_ref<T, ::cuda::thread_scope_device>;

// By one thread: what was stored before it is there for whoever acquires the words. `flag`: of a peer, or null;
// `host_word`: of the host, or null.
__device__ __forceinline__ void Tell(int64_t sequence, int64_t* flag, int64_t* host_word) {
  // release, and cumulative: what this thread has seen of other blocks and of earlier kernels is ordered before both.
  // The peer's kernel, or the host's worker, acquires it.
  ::cuda::atomic_thread_fence(::cuda::memory_order_release, ::cuda::thread_scope_system);
  if (host_word != nullptr) SystemWord<int64_t>(*host_word).store(sequence, ::cuda::memory_order_relaxed);
  if (flag != nullptr) SystemWord<int64_t>(*flag).store(sequence, ::cuda::memory_order_relaxed);
}

// Whom the block that is through last tells, and what, in shared memory: read when the kernel begins, so that nothing
// has to be looked up between the last store and the word, and no registers are held for it.
struct TellersView {
  int64_t* flags[kWarp];
  int64_t sequence;  // 0: nothing is to be told
};
__device__ __forceinline__ TellersView& ViewOfBlock() {
  __shared__ TellersView view;
  return view;
}

// By all threads, when a send kernel has begun; a barrier lies between it and TellWhenLast. `channel`: its state now.
// What is wrong with the exchange, the exchange kernel finds as well.
__device__ __forceinline__ void BeginToTell(const Teller& teller, const ChannelState& channel) {
  if (teller.state == nullptr || threadIdx.x >= kWarp) return;
  const auto lane = static_cast<int32_t>(threadIdx.x);
  int64_t* const flag = lane < teller.ranks ? teller.peers[lane].flag : nullptr;
  const bool is_on_rank = *teller.axis_rank == teller.rank;
  TellersView& view = ViewOfBlock();
  view.flags[lane] = flag;
  if (lane == 0) view.sequence = is_on_rank && channel.issued == channel.finished ? channel.issued + 1 : 0;
}

// The last thing in a send kernel, by all threads of all blocks: the block that is through last tells all peers.
__device__ __forceinline__ void TellWhenLast(const Teller& teller) {
  if (teller.state == nullptr) return;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const uint32_t blocks = gridDim.x * gridDim.y;
  if (blocks > 1) {
    uint32_t before = 0;
    // acq_rel, with the same of the other blocks: the last one knows of all their stores.
    if (lane == 0) {
      before = DeviceWord<uint32_t>(teller.state->sent_blocks).fetch_add(1, ::cuda::memory_order_acq_rel);
    }
    if (__shfl_sync(kAllLanes, before, 0) + 1 != blocks) return;
    if (lane == 0) teller.state->sent_blocks = 0;
  }
  const TellersView& view = ViewOfBlock();
  if (view.sequence == 0) return;
  __syncwarp();  // what lane 0 has acquired, all lanes have
  Tell(view.sequence, view.flags[lane], lane == 0 && teller.through_host ? &teller.signals->posted.sequence : nullptr);
#pragma unroll 1
  for (int32_t rank = lane + kWarp; rank < teller.ranks; rank += kWarp) {
    if (int64_t* const flag = teller.peers[rank].flag; flag != nullptr) Tell(view.sequence, flag, nullptr);
  }
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_TELL_CUH_
