#ifndef JAX_FABRIC_MOE_CUDA_WRITE_ORDERING_H_
#define JAX_FABRIC_MOE_CUDA_WRITE_ORDERING_H_

#include "csrc/base/status.h"

namespace jax_fabric::moe {

// Kernels read what others have written into their device's memory over PCIe after the host has told them, and the host
// makes no call into CUDA in between that would order the one before the other. Error: the device does not promise
// that.
Status CheckDirectAccess(int device);

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_WRITE_ORDERING_H_
