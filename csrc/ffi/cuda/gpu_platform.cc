#include "csrc/ffi/gpu_platform.h"

#include "csrc/ffi/cuda/moe_handlers.h"
#include "csrc/moe/cuda/cuda_context.h"

namespace jax_fabric::ffi_layer {

bool HasGpu() { return true; }

std::vector<Target> GpuTargets() { return CudaMoeTargets(); }

Result<std::unique_ptr<moe::RankContext>> CreateGpuContext(const moe::MoeConfig& config, DomainGroup* group,
                                                           moe::HostProxy* proxy, int device, bool force_staged) {
  return moe::CudaContext::Create(config, group, proxy, {.device = device, .force_staged = force_staged});
}

}  // namespace jax_fabric::ffi_layer
