// What this build can do on GPUs: everything (csrc/ffi/cuda), or nothing.
#ifndef JAX_FABRIC_FFI_GPU_PLATFORM_H_
#define JAX_FABRIC_FFI_GPU_PLATFORM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domain_group.h"
#include "csrc/ffi/target.h"
#include "csrc/moe/moe_config.h"
#include "csrc/moe/rank_context.h"

namespace jax_fabric::ffi_layer {

// Whether it was built with CUDA; says nothing of the machine.
bool HasGpu();
// Custom calls for XLA's platform "CUDA".
std::vector<Target> GpuTargets();
// A word of the host that kernels of the device can store into. Never freed.
Result<std::shared_ptr<uint64_t>> AllocateGpuWord(int device);
// As CudaContext::Create; messages go through host memory if `force_staged`, else by NICs if `through_nic`.
// `predecessor` comes from here, too, or is null.
Result<std::unique_ptr<moe::RankContext>> CreateGpuContext(const moe::MoeConfig& config, DomainGroup* group, int device,
                                                           bool force_staged, bool through_nic,
                                                           const moe::RankContext* predecessor);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_GPU_PLATFORM_H_
