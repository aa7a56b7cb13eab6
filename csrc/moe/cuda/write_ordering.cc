#include "csrc/moe/cuda/write_ordering.h"

#include <cuda_runtime_api.h>

#include "csrc/moe/cuda/cuda_status.h"

namespace jax_fabric::moe {

Status CheckDirectAccess(int device) {
  int supported = 0, ordering = 0;
  JF_RETURN_IF_ERROR(
      FromCuda(cudaDeviceGetAttribute(&supported, cudaDevAttrGPUDirectRDMASupported, device), "GPUDirect RDMA"));
  JF_RETURN_IF_ERROR(FromCuda(cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, device),
                              "GPUDirect RDMA's ordering"));
  if (supported != 0 && ordering >= cudaGPUDirectRDMAWritesOrderingOwner) return {};
  return MakeError(ErrorCode::kFailedPrecondition, "GPU {} {}", device,
                   supported == 0 ? "cannot be written to by NICs (GPUDirect RDMA)"
                                  : "does not order what NICs write before what its kernels read");
}

}  // namespace jax_fabric::moe
