// What this build can do on GPUs: everything (csrc/ffi/cuda), or nothing.
#ifndef JAX_FABRIC_FFI_GPU_PLATFORM_H_
#define JAX_FABRIC_FFI_GPU_PLATFORM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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
// A GPU, and how its messages get to others.
struct GpuOptions {
  int cuda_device = 0;        // as CUDA numbers it in this process
  bool force_staged = false;  // through host memory
  // Of this process: none: the machine; "": its GPUs reach no other one by themselves; else for moe::NodeNumber.
  std::optional<std::string> node;
  std::string gdrcopy_library;  // by which the host stores into its memory; empty: the system's
};
// As CudaContext::Create; `through_nic`: messages leave this node by NICs, if not through host memory. `predecessor`
// comes from here, too, or is null.
Result<std::unique_ptr<moe::RankContext>> CreateGpuContext(const moe::MoeConfig& config, DomainGroup* group,
                                                           const GpuOptions& gpu, bool through_nic,
                                                           const moe::RankContext* predecessor);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_GPU_PLATFORM_H_
