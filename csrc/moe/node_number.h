#ifndef JAX_FABRIC_MOE_NODE_NUMBER_H_
#define JAX_FABRIC_MOE_NODE_NUMBER_H_

#include <cstdint>
#include <string>

#include "csrc/base/status.h"

namespace jax_fabric::moe {

// Equal in processes that can open each other's CUDA IPC handles: of one booted machine, and of the same pid, network
// and IPC namespaces. Or, with a name, in all that say the same one. Never 0.
Result<uint64_t> NodeNumber(const std::string& name);

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_NODE_NUMBER_H_
