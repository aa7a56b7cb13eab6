// Who tells the peers that a rank's messages are complete: the send kernel itself, whose last block does it, so that
// nothing has to be launched between the last store and the word that says so.
#ifndef JAX_FABRIC_KERNELS_CUDA_TELL_H_
#define JAX_FABRIC_KERNELS_CUDA_TELL_H_

#include <cstdint>

#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {

// How a channel reaches a rank, itself included.
struct ExchangePeer {
  // In the peer's memory, for this rank alone: the last exchange whose message to it is complete. Null: the host knows
  // how to bring messages there, and says when the peer's are here.
  int64_t* flag = nullptr;
  uint64_t incarnation = 0;
  bool absent = false;  // nothing leaves for it and nothing comes; this rank's slot for it holds an empty message
};

// What a send kernel needs to know for it. Pointers are to memory that the device can reach.
struct Teller {
  ChannelState* state = nullptr;  // null: the exchange kernel tells them
  ChannelSignals* signals = nullptr;
  const ExchangePeer* peers = nullptr;  // [N]
  const int32_t* axis_rank = nullptr;   // where the program believes that it is: nothing is told if that is wrong
  int32_t ranks = 0;
  int32_t rank = 0;
  bool through_host = false;  // some peer may have no flag
};

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_TELL_H_
