#include "csrc/ffi/gpu_platform.h"

#include "csrc/ffi/cuda/bump_handler.h"
#include "csrc/ffi/cuda/moe_handlers.h"
#include "csrc/moe/cuda/cuda_context.h"
#include "csrc/moe/node_number.h"

namespace jax_fabric::ffi_layer {

bool HasGpu() { return true; }

std::vector<Target> GpuTargets() {
  std::vector<Target> targets = CudaMoeTargets();
  targets.push_back(CudaBumpTarget());
  return targets;
}

Result<std::shared_ptr<uint64_t>> AllocateGpuWord(int device) { return AllocateMappedWord(device); }

Result<std::unique_ptr<moe::RankContext>> CreateGpuContext(const moe::MoeConfig& config, DomainGroup* group,
                                                           const GpuOptions& gpu, bool through_nic,
                                                           const moe::RankContext* predecessor) {
  const moe::MessageRoute route = gpu.force_staged ? moe::MessageRoute::kHostMemory
                                  : through_nic    ? moe::MessageRoute::kDeviceMemory
                                                   : moe::MessageRoute::kKernelStores;
  uint64_t node = 0;
  if (gpu.node != "") {
    JF_ASSIGN_OR_RETURN(node, moe::NodeNumber(gpu.node.value_or("")));
  }
  const moe::CudaContext::Options options{
      .device = gpu.cuda_device, .route = route, .node = node, .gdrcopy_library = gpu.gdrcopy_library};
  return moe::CudaContext::Create(config, group, options, static_cast<const moe::CudaContext*>(predecessor));
}

}  // namespace jax_fabric::ffi_layer
