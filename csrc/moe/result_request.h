// The second half of a call whose first half was started: where its results go. It belongs to the channel from
// Channel::Attach until End, which the channel or the exchange calls exactly once.
#ifndef JAX_FABRIC_MOE_RESULT_REQUEST_H_
#define JAX_FABRIC_MOE_RESULT_REQUEST_H_

#include <cstdint>

#include "csrc/base/executor.h"
#include "csrc/base/status.h"
#include "csrc/kernels/moe_kernels.h"

namespace jax_fabric::moe {

class Channel;

class ResultRequest {
 public:
  // `sequence`: the lowest 32 bits of what StartedExchange said its number is.
  ResultRequest(kernels::ExchangeKind kind, int32_t sequence) : kind_(kind), sequence_(sequence) {}
  virtual ~ResultRequest() = default;

  // On the channel's strand. `error` is null on success and valid only during the call. The request may delete itself.
  virtual void End(const Error* error) = 0;

  kernels::ExchangeKind kind() const { return kind_; }
  int32_t sequence() const { return sequence_; }

 private:
  friend class Channel;

  const kernels::ExchangeKind kind_;
  const int32_t sequence_;

  Task task_;
  Channel* channel_ = nullptr;
};

// Of kDispatch with the arguments of dispatch, or of kCombine with those of combine.
template <typename SendArgs, typename ReceiveArgs>
class KernelResultRequest : public ResultRequest {
 public:
  // `send_args` are those of the start, or at least what rounds after the first one need.
  KernelResultRequest(kernels::ExchangeKind kind, int32_t sequence, const SendArgs& send_args,
                      void (*receive)(const ReceiveArgs&), const ReceiveArgs& receive_args)
      : ResultRequest(kind, sequence), send_args_(send_args), receive_(receive), receive_args_(receive_args) {}

  const SendArgs& send_args() const { return send_args_; }
  void (*receive() const)(const ReceiveArgs&) { return receive_; }
  const ReceiveArgs& receive_args() const { return receive_args_; }

 private:
  const SendArgs send_args_;
  void (*const receive_)(const ReceiveArgs&);
  const ReceiveArgs receive_args_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_RESULT_REQUEST_H_
