// Registration of CUDA memory: the one place that knows how.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_DEVICE_MEMORY_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_DEVICE_MEMORY_H_

#include <rdma/fi_domain.h>

#include "csrc/base/status.h"

namespace jax_fabric::efa {

// Fills what the provider has to know to register device memory at `address`; the provider exports the dmabuf itself.
// No machine with CUDA and such a NIC was at hand: this has never run (docs/nics.md).
Status DescribeDeviceMemory(const void* address, fi_mr_attr& attributes);

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_DEVICE_MEMORY_H_
