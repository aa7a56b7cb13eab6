#include "csrc/moe/cuda/cuda_channel.h"

#include <algorithm>

#include "csrc/moe/cuda/cuda_status.h"

namespace jax_fabric::moe {

namespace cuda = kernels::cuda;

namespace {

template <typename SendArgs, typename ReceiveArgs>
struct KernelPair {
  cudaError_t (*send)(const SendArgs&, const cuda::LaunchOptions&);
  cudaError_t (*receive)(const ReceiveArgs&, const cuda::LaunchOptions&);
};

}  // namespace

kernels::MessageStamp CudaChannel::StampOf(const CudaCall& call) const {
  return {.signature = call.signature, .channel = static_cast<uint32_t>(index_)};
}

cuda::ExchangeArgs CudaChannel::ExchangeOf(const CudaCall& call) const {
  cuda::ExchangeArgs exchange;
  exchange.channel = memory_.exchange;
  exchange.layout = config_.layout;
  exchange.kind = call.kind;
  exchange.stamp = StampOf(call);
  exchange.slots = memory_.receive_slots;
  exchange.axis_rank = call.axis_rank;
  exchange.ticket = call.ticket;
  exchange.token = call.token;
  exchange.output_count = static_cast<int32_t>(call.outputs.size());
  std::copy(call.outputs.begin(), call.outputs.end(), exchange.outputs);
  return exchange;
}

template <typename SendArgs, typename ReceiveArgs, typename Kernels>
cudaError_t CudaChannel::Launch(const CudaCall& call, cuda::ExchangeArgs exchange, SendArgs send, ReceiveArgs receive,
                                const Kernels& kernels) const {
  const kernels::MoeShape& shape = config_.layout.shape;
  const cuda::LaunchOptions options{.stream = call.stream,
                                    .workspace = memory_.workspace,
                                    .multiprocessors = multiprocessors_,
                                    .channel = memory_.exchange.state,
                                    .tell = {.state = memory_.exchange.state,
                                             .signals = memory_.exchange.signals,
                                             .peers = memory_.exchange.peers,
                                             .axis_rank = call.axis_rank,
                                             .ranks = shape.ranks,
                                             .rank = shape.rank,
                                             .through_host = memory_.exchange.through_host}};
  send.stamp = StampOf(call);
  send.slots = memory_.send_slots;
  send.message_bytes = memory_.message_bytes;
  receive.slots = memory_.receive_slots;
  // How many rounds are needed is known on the device only; those that are not move nothing.
  for (int32_t round = 0; round < shape.MaxRounds(); ++round) {
    send.round = receive.round = exchange.round = round;
    exchange.part = round == 0 ? call.part : cuda::ExchangePart::kWhole;
    exchange.told = exchange.part != cuda::ExchangePart::kFinish;
    if (exchange.told) {
      if (const cudaError_t error = kernels.send(send, options); error != cudaSuccess) return error;
    }
    if (const cudaError_t error = cuda::Exchange(exchange, call.stream); error != cudaSuccess) return error;
    if (exchange.part == cuda::ExchangePart::kBegin) break;
    if (const cudaError_t error = kernels.receive(receive, options); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

Status CudaChannel::Dispatch(const CudaCall& call, kernels::DispatchSendArgs send,
                             kernels::DispatchReceiveArgs receive) const {
  cuda::ExchangeArgs exchange = ExchangeOf(call);
  exchange.send_route = send.route;
  exchange.receive_route = receive.route;
  exchange.t_rows = send.t_rows;
  const kernels::MoeShape& shape = config_.layout.shape;
  const int64_t most = int64_t{shape.ranks} * shape.max_tokens * shape.LocalTopK();
  const int64_t capacity = shape.capacity * receive.elements;
  if (!receive.drop_overflow && capacity < most) exchange.capacity = capacity;
  const KernelPair<kernels::DispatchSendArgs, kernels::DispatchReceiveArgs> kernels{cuda::DispatchSend,
                                                                                    cuda::DispatchReceive};
  JF_RETURN_IF_ERROR(FromCuda(Launch(call, exchange, send, receive, kernels), "moe dispatch: launch"));
  if (call.part == cuda::ExchangePart::kBegin || receive.elements == 1 || receive.drop_overflow ||
      shape.capacity >= most)
    return {};
  return FromCuda(cuda::CheckElements(exchange, receive.dropped, receive.elements, call.stream),
                  "moe dispatch: launch");
}

Status CudaChannel::Combine(const CudaCall& call, kernels::CombineSendArgs send,
                            kernels::CombineReceiveArgs receive) const {
  cuda::ExchangeArgs exchange = ExchangeOf(call);
  exchange.send_route = receive.route;
  exchange.receive_route = send.route;
  exchange.t_rows = receive.t_rows;
  const KernelPair<kernels::CombineSendArgs, kernels::CombineReceiveArgs> kernels{cuda::CombineSend,
                                                                                  cuda::CombineReceive};
  return FromCuda(Launch(call, exchange, send, receive, kernels), "moe combine: launch");
}

Status CudaChannel::Redispatch(const CudaCall& call, kernels::RedispatchSendArgs send,
                               kernels::RedispatchReceiveArgs receive) const {
  cuda::ExchangeArgs exchange = ExchangeOf(call);
  exchange.send_route = send.route;
  exchange.receive_route = receive.route;
  exchange.t_rows = send.t_rows;
  const KernelPair<kernels::RedispatchSendArgs, kernels::RedispatchReceiveArgs> kernels{cuda::RedispatchSend,
                                                                                        cuda::RedispatchReceive};
  return FromCuda(Launch(call, exchange, send, receive, kernels), "moe redispatch: launch");
}

}  // namespace jax_fabric::moe
