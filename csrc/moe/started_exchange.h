// An exchange in two halves: it is sent when it starts, and what arrives waits in the slots until somebody asks for it.
// Until then its channel goes no further, so exchanges that are in flight at once need channels of their own. The first
// half sends the first round; whatever rounds follow belong to the second one, which has the operands once more.
#ifndef JAX_FABRIC_MOE_STARTED_EXCHANGE_H_
#define JAX_FABRIC_MOE_STARTED_EXCHANGE_H_

#include "csrc/moe/exchanges.h"
#include "csrc/moe/result_request.h"

namespace jax_fabric::moe {

// Whoever started it.
class StartListener {
 public:
  virtual ~StartListener() = default;
  // Once, on the channel's strand. Null: the first round is packed, the operands may go, and `sequence` is what a
  // ResultRequest must name. The listener may delete itself.
  virtual void Started(const Error* error, int64_t sequence) = 0;
};

// Deletes itself when it has ended.
template <typename SendArgs, typename ReceiveArgs>
class StartedExchange final : public KernelExchange<SendArgs, ReceiveArgs> {
 public:
  using Base = KernelExchange<SendArgs, ReceiveArgs>;

  StartedExchange(const CallSite& site, int64_t run, kernels::ExchangeKind kind, uint64_t signature,
                  void (*send)(const SendArgs&), const SendArgs& send_args, StartListener* listener)
      : Base(site, run, kind, signature, {send, send_args, nullptr, {}}), listener_(listener) {}

  void Pack(int32_t round, const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) override {
    Base::Pack(round, stamp, slots, message_bytes);
    if (round == 0) std::exchange(listener_, nullptr)->Started(nullptr, this->sequence());
  }

  bool Attach(ResultRequest& request) override {
    if (request_ != nullptr || request.kind() != this->kind()) return false;
    const auto& half = static_cast<const KernelResultRequest<SendArgs, ReceiveArgs>&>(request);
    this->SetSecondHalf(half.send_args(), half.receive(), half.receive_args());
    request_ = &request;
    return true;
  }
  bool can_unpack() const override { return request_ != nullptr; }

  void Finish(const Error* error) override {
    // Neither: it failed between its halves, and the second one hears of it from the channel.
    if (listener_ != nullptr) listener_->Started(error, 0);
    if (request_ != nullptr) request_->End(error);
    delete this;
  }

 private:
  StartListener* listener_;  // until packed
  ResultRequest* request_ = nullptr;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_STARTED_EXCHANGE_H_
