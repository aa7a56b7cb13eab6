// One channel of one rank on a GPU: exchanges as launches on a stream. A call is one exchange, or one for each round
// that its shape may need; each of them a send kernel, an exchange kernel (kernels/cuda/exchange.h) and a receive
// kernel. Halves of calls are parts of that: the first one ends when the messages have left, the second one begins with
// the wait for those of the others.
//
// Launches may be captured and replayed, and happen on one stream in one order, which is the order of the exchanges. A
// call that XLA runs twice is one more exchange, on all ranks alike. Nothing in a launch is of one membership epoch.
#ifndef JAX_FABRIC_MOE_CUDA_CUDA_CHANNEL_H_
#define JAX_FABRIC_MOE_CUDA_CUDA_CHANNEL_H_

#include <cstdint>
#include <span>

#include "csrc/base/status.h"
#include "csrc/kernels/cuda/exchange.h"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/moe/moe_config.h"

namespace jax_fabric::moe {

// A call, but for what its kernels work on. Pointers are to the device's memory.
struct CudaCall {
  cudaStream_t stream = nullptr;
  kernels::ExchangeKind kind = kernels::ExchangeKind::kDispatch;
  uint64_t signature = 0;              // of everything that must be equal on all ranks
  const int32_t* axis_rank = nullptr;  // where the program believes that it is
  // Of its first round; kBegin has no other one, and kFinish has all others.
  kernels::cuda::ExchangePart part = kernels::cuda::ExchangePart::kWhole;
  const int32_t* ticket = nullptr;  // kFinish: the token of kBegin
  int32_t* token = nullptr;         // out: the number of its last exchange
  // Results, and what they are set to where there are none: at most ExchangeArgs::kMostOutputs.
  std::span<const kernels::cuda::FillRange> outputs;
};

class CudaChannel {
 public:
  // What lies where; all of it on the device, or mapped there.
  struct Memory {
    kernels::cuda::ExchangeChannel exchange;
    void* const* send_slots = nullptr;     // [2 N] those of odd exchanges behind those of even ones
    void* const* receive_slots = nullptr;  // [2 N] the same
    int64_t* message_bytes = nullptr;      // [N]
    void* workspace = nullptr;             // WorkspaceBytes(layout, max_tokens)
  };
  // `config` outlives the channel.
  CudaChannel(int32_t index, const MoeConfig& config, int32_t multiprocessors, const Memory& memory)
      : index_(index), config_(config), multiprocessors_(multiprocessors), memory_(memory) {}

  // From any thread. What the arguments say of rounds, stamps, slots and message_bytes is filled in. kBegin does not
  // look at `receive`; kFinish needs of `send` what later rounds send.
  Status Dispatch(const CudaCall& call, kernels::DispatchSendArgs send, kernels::DispatchReceiveArgs receive) const;
  Status Combine(const CudaCall& call, kernels::CombineSendArgs send, kernels::CombineReceiveArgs receive) const;
  Status Redispatch(const CudaCall& call, kernels::RedispatchSendArgs send,
                    kernels::RedispatchReceiveArgs receive) const;

 private:
  template <typename SendArgs, typename ReceiveArgs, typename Kernels>
  cudaError_t Launch(const CudaCall& call, kernels::cuda::ExchangeArgs exchange, SendArgs send, ReceiveArgs receive,
                     const Kernels& kernels) const;
  kernels::cuda::ExchangeArgs ExchangeOf(const CudaCall& call) const;
  // All that launches may say of it: the rest is the epoch's, and known on the device (ChannelEpoch).
  kernels::MessageStamp StampOf(const CudaCall& call) const;

  const int32_t index_;
  const MoeConfig& config_;
  const int32_t multiprocessors_;
  const Memory memory_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_CUDA_CHANNEL_H_
