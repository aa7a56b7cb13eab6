// When kernels ran, by the clock that all multiprocessors share.
#ifndef JAX_FABRIC_KERNELS_CUDA_KERNEL_TIMER_CUH_
#define JAX_FABRIC_KERNELS_CUDA_KERNEL_TIMER_CUH_

#include <cstdint>

#include "csrc/kernels/cuda/moe_kernels.h"

namespace jax_fabric::kernels::cuda {

__device__ __forceinline__ uint64_t GlobalTimerNs() {
  uint64_t time_ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time_ns));
  return time_ns;
}

// For the lifetime of a block; `times` may be null.
class KernelTimer {
 public:
  explicit __device__ __forceinline__ KernelTimer(KernelTimes* times) : times_(times) {
    if (times_ != nullptr && threadIdx.x == 0) Note(&Place().first_begin_ns, false);
  }
  __device__ __forceinline__ ~KernelTimer() {
    if (times_ == nullptr) return;
    __threadfence();  // what was stored counts
    if (threadIdx.x % 32 == 0) Note(&Place().last_end_ns, true);
  }

 private:
  __device__ __forceinline__ KernelTimes::Place& Place() const {
    return times_->places[(blockIdx.x + blockIdx.y * gridDim.x) % KernelTimes::kPlaces];
  }
  static __device__ __forceinline__ void Note(uint64_t* time_ns, bool latest) {
    auto* word = reinterpret_cast<unsigned long long*>(time_ns);
    const unsigned long long now = GlobalTimerNs();
    if (latest) {
      atomicMax(word, now);
    } else {
      atomicMin(word, now);
    }
  }

  KernelTimes* const times_;
};

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_KERNEL_TIMER_CUH_
