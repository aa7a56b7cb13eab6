// Kernels that talk to the host (csrc/kernels/signals.h), each of one thread. Launches allocate nothing and wait for
// nothing; all but Ticket may run twice.
#ifndef JAX_FABRIC_KERNELS_CUDA_SIGNAL_KERNELS_H_
#define JAX_FABRIC_KERNELS_CUDA_SIGNAL_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {

// *token = number of the channel's next exchange. The one operation that must run once.
cudaError_t Ticket(ChannelState* state, int32_t* token, cudaStream_t stream);

struct PostArgs {
  ChannelSignals* signals = nullptr;  // as the device has mapped it
  ChannelState* state = nullptr;
  const int32_t* ticket = nullptr;  // in: the exchange
  TriggerRecord record;             // what to say; its sequence is the ticket
};
// Tells the host of an exchange; what kernels before it on the stream have stored is there when the host sees it. A
// repeat says nothing as long as the exchange's slots are its own, which those of the last two are; then it is kStale.
cudaError_t Post(const PostArgs& args, cudaStream_t stream);

struct WaitArgs {
  ChannelSignals* signals = nullptr;
  ChannelState* state = nullptr;
  const AbortWord* abort = nullptr;
  const int32_t* ticket = nullptr;
  int64_t timeout_ns = 0;
};
// Until the host says that the exchange is done; kernels behind it on the stream see what the host and the NICs wrote
// before that. After an error no wait of the channel waits.
cudaError_t Wait(const WaitArgs& args, cudaStream_t stream);

// Raises a watcher's word to `value`; what kernels before it have stored is there when the host sees it.
cudaError_t Bump(WatcherWord* word, const uint64_t* value, cudaStream_t stream);

cudaError_t LoadSignalKernels();

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_SIGNAL_KERNELS_H_
