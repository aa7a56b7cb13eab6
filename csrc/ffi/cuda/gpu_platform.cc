#include "csrc/ffi/gpu_platform.h"

#include "csrc/ffi/cuda/bump_handler.h"
#include "csrc/ffi/cuda/moe_handlers.h"
#include "csrc/moe/cuda/cuda_context.h"

namespace jax_fabric::ffi_layer {

bool HasGpu() { return true; }

std::vector<Target> GpuTargets() {
  std::vector<Target> targets = CudaMoeTargets();
  targets.push_back(CudaBumpTarget());
  return targets;
}

Result<std::shared_ptr<uint64_t>> AllocateGpuWord(int device) { return AllocateMappedWord(device); }

Result<std::unique_ptr<moe::RankContext>> CreateGpuContext(const moe::MoeConfig& config, DomainGroup* group, int device,
                                                           bool force_staged, const moe::RankContext* predecessor) {
  return moe::CudaContext::Create(config, group, {.device = device, .force_staged = force_staged},
                                  static_cast<const moe::CudaContext*>(predecessor));
}

}  // namespace jax_fabric::ffi_layer
