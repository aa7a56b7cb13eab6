#include "csrc/kernels/cuda/moe_kernels.h"

#include <algorithm>
#include <cstdint>

#include "csrc/kernels/cuda/load_kernels.h"
#include "csrc/kernels/cuda/workspace.h"

namespace jax_fabric::kernels::cuda {

int64_t WorkspaceBytes(const SlotLayout& layout, int32_t elements) {
  WorkspaceParts send(nullptr), receive(nullptr), redispatch(nullptr);
  DispatchSendWorkspace(send, layout.shape);
  DispatchReceiveWorkspace(receive, layout.shape, elements);
  RedispatchWorkspace(redispatch, layout.shape);
  return std::max({send.bytes(), receive.bytes(), redispatch.bytes()});
}

cudaError_t LoadKernels() {
  for (const auto load : {LoadDispatchSend, LoadDispatchReceive, LoadFusedDispatchSend, LoadFusedDispatchReceive,
                          LoadCombine, LoadRedispatch, LoadSendRows, LoadExchange}) {
    if (const cudaError_t error = load(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jax_fabric::kernels::cuda
