// Rows of tokens into the messages of this rank, along a route: the moving half of dispatch and redispatch.
#ifndef JAX_FABRIC_KERNELS_CUDA_SEND_ROWS_CUH_
#define JAX_FABRIC_KERNELS_CUDA_SEND_ROWS_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/cuda/row_format.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::cuda {

struct SendRowsArgs {
  RowFormat format;
  MoeShape shape;
  int32_t round = 0;
  int32_t t_rows = 0;
  RowSource source;
  SendRoute route;
  void* const* slots = nullptr;
  // [N] where the rows begin in the message to each rank; null: PlainPayloadOffset
  const int64_t* payload_offsets = nullptr;
  // [N] row of the route that comes first in the message to each rank; null: 0
  const int32_t* first_rows = nullptr;
  int64_t plain_payload_offset = 0;
};

cudaError_t LaunchSendRows(const SendRowsArgs& args, const LaunchOptions& options);

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_SEND_ROWS_CUH_
