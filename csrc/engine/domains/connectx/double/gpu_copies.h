// What a NIC does to memory of GPUs by itself, here by copies of NVIDIA's driver, which is opened at run time. They use
// a stream of their own, so that kernels that wait for them go on.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_GPU_COPIES_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_GPU_COPIES_H_

#include <cstddef>

namespace jax_fabric::verbs_double {

bool IsGpuMemory(const void* address);
// One of the two is host memory. Returns when it is done; false: it cannot be done.
bool GpuCopy(void* to, const void* from, size_t bytes);

}  // namespace jax_fabric::verbs_double

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_GPU_COPIES_H_
