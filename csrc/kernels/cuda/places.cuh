// Where the row of one token goes.
#ifndef JAX_FABRIC_KERNELS_CUDA_PLACES_CUH_
#define JAX_FABRIC_KERNELS_CUDA_PLACES_CUH_

namespace jax_fabric::kernels::cuda {

// Of the blocks that send rows.
inline constexpr int kSendThreads = 512;

// `count` places in messages.
struct Places {
  char* const* rows;
  int count;
};

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_PLACES_CUH_
