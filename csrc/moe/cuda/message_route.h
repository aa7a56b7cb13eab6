#ifndef JAX_FABRIC_MOE_CUDA_MESSAGE_ROUTE_H_
#define JAX_FABRIC_MOE_CUDA_MESSAGE_ROUTE_H_

#include <cstdint>

namespace jax_fabric::moe {

// How a GPU's messages get to the other ranks; the same on all of them.
enum class MessageRoute : uint8_t {
  kKernelStores = 1,  // into memory of their GPUs, which this one reaches by itself
  kHostMemory = 2,    // packed into host memory, and from there through the engine into that of the others
  kDeviceMemory = 3,  // as kKernelStores on this GPU's node; to others by NICs, from this GPU's memory into theirs
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_MESSAGE_ROUTE_H_
