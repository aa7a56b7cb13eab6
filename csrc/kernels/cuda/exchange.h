// The exchange between a send kernel and a receive kernel: tells the peers that this rank's messages are complete,
// waits for theirs and checks them. Launches allocate nothing; a stream that is being captured records them.
//
// The exchanges of a channel must follow each other on their device: each kernel leaves to the next one what is in
// ChannelState. Which exchange it is, is known there and nowhere else, so a recorded launch can be replayed.
#ifndef JAX_FABRIC_KERNELS_CUDA_EXCHANGE_H_
#define JAX_FABRIC_KERNELS_CUDA_EXCHANGE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/cuda/tell.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {

// What results are set to when there are none: `pattern` again and again. Aligned to 4.
struct FillRange {
  void* begin = nullptr;
  int64_t bytes = 0;
  uint32_t pattern = 0;
};

// What all exchanges of a channel have in common. Pointers are to memory that the device can reach.
struct ExchangeChannel {
  ChannelState* state = nullptr;
  ChannelSignals* signals = nullptr;
  const ChannelSignals::HostLine* host = nullptr;  // in the device's own memory, in the place of signals->host; or null
  uint8_t* missing = nullptr;  // [N] in host memory: set at the deadline for ranks whose messages are not there
  const ExchangePeer* peers = nullptr;  // [N]
  int64_t* expert_rows = nullptr;       // [N] zeros; scratch
  bool through_host = false;            // some peer may have no flag
  int64_t timeout_ns = 0;
};

enum class ExchangePart : int32_t {
  kWhole = 0,
  kBegin = 1,   // this rank's messages leave
  kFinish = 2,  // those of the others are awaited
};

struct ExchangeArgs {
  static constexpr int kMostOutputs = 10;

  ExchangeChannel channel;
  ExchangePart part = ExchangePart::kWhole;
  // By the send kernel, which is what runs before this one on the stream: the peers have been told.
  bool told = false;
  SlotLayout layout;
  ExchangeKind kind = ExchangeKind::kDispatch;
  // The channel and the peers know sequence, incarnation and epoch, and kFinish the signature from the beginning.
  MessageStamp stamp;
  int32_t round = 0;
  void* const* slots = nullptr;        // [2 N] of this rank, those of odd exchanges behind those of even ones
  const int32_t* axis_rank = nullptr;  // where the program believes that it is
  const int32_t* ticket = nullptr;     // kFinish: what the beginning said
  int32_t* token = nullptr;            // out: the exchange, its lowest bits
  // Of the receive kernel, from which it follows what each source must have sent. All but the first round of dispatch.
  SendRoute send_route;
  ReceiveRoute receive_route;
  int32_t t_rows = 0;
  // Of a dispatch whose capacity can be too small: rows of a rank at most. 0: nobody needs to look.
  int64_t capacity = 0;
  // What to fill where the channel has failed; the receive kernel does nothing then.
  FillRange outputs[kMostOutputs];
  int32_t output_count = 0;
  KernelTimes* times = nullptr;  // out: when it ran; may be null
};

cudaError_t Exchange(const ExchangeArgs& args, cudaStream_t stream);

// After the receive kernel of a batch: whether each of its elements has found room (dropped: [elements]). Fills the
// outputs where one has not.
cudaError_t CheckElements(const ExchangeArgs& args, const int32_t* dropped, int32_t elements, cudaStream_t stream);

// Raises a watcher's word to *value; what kernels before it have stored is there when the host sees it.
cudaError_t Bump(WatcherWord* word, const uint64_t* value, cudaStream_t stream);

cudaError_t LoadExchange();

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_EXCHANGE_H_
