#include "csrc/ffi/gpu_platform.h"

namespace jax_fabric::ffi_layer {
namespace {

tl::unexpected<Error> NoGpu() {
  return MakeError(ErrorCode::kFailedPrecondition,
                   "this jax_fabric was built without CUDA: build it where nvcc is found (docs/building.md)");
}

}  // namespace

bool HasGpu() { return false; }

std::vector<Target> GpuTargets() { return {}; }

Result<std::shared_ptr<uint64_t>> AllocateGpuWord(int) { return NoGpu(); }

Result<std::unique_ptr<moe::RankContext>> CreateGpuContext(const moe::MoeConfig&, DomainGroup*, const GpuOptions&, bool,
                                                           const moe::RankContext*) {
  return NoGpu();
}

}  // namespace jax_fabric::ffi_layer
