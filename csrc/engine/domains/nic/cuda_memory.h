// What NICs have to know of memory of CUDA devices. NVIDIA's driver is opened at run time: nothing here links with
// CUDA.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_NIC_CUDA_MEMORY_H_
#define JAX_FABRIC_ENGINE_DOMAINS_NIC_CUDA_MEMORY_H_

#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/base/unique_fd.h"

namespace jax_fabric::nic {

// The ordinal of the device that memory at `address` is on.
Result<int> CudaDeviceOf(const void* address);

// Device memory as the kernel hands it from one driver to another.
struct DmaBuf {
  UniqueFd fd;
  uint64_t offset = 0;  // of the memory in it
};

// [address, address + length), which has to lie in one allocation.
Result<DmaBuf> ExportCudaMemory(const void* address, uint64_t length);

}  // namespace jax_fabric::nic

#endif  // JAX_FABRIC_ENGINE_DOMAINS_NIC_CUDA_MEMORY_H_
