// A PatternExchange in two halves, and what each of them has heard.
#ifndef JAX_FABRIC_MOE_TESTING_STARTED_PATTERN_H_
#define JAX_FABRIC_MOE_TESTING_STARTED_PATTERN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "csrc/moe/channel.h"
#include "csrc/moe/started_exchange.h"
#include "csrc/moe/testing/pattern_exchange.h"

namespace jax_fabric::moe::testing {

struct PatternSend {
  int32_t round = 0;
  kernels::MessageStamp stamp;
  void* const* slots = nullptr;
  int64_t* message_bytes = nullptr;
  PatternExchange* pattern = nullptr;
};
struct PatternReceive {
  int32_t round = 0;
  const void* const* slots = nullptr;
  PatternExchange* pattern = nullptr;
};
inline kernels::ExpectedRows RowsFrom(const PatternReceive& args, int32_t round, int32_t source) {
  return args.pattern->RowsOf(round, source);
}
inline int32_t RoundsOfCall(const PatternSend& args, const PatternReceive&) { return args.pattern->rounds(); }
inline int32_t RoundsAfterUnpack(const PatternReceive& args, int32_t) { return args.pattern->rounds(); }

class StartedPattern final : public StartListener {
 public:
  StartedPattern(const kernels::SlotLayout& layout, const PatternCall& call)
      : pattern_(layout, call),
        exchange_(new StartedExchange<PatternSend, PatternReceive>(
            call.site, call.run, call.kind, call.signature,
            [](const PatternSend& args) { args.pattern->Pack(args.round, args.stamp, args.slots, args.message_bytes); },
            PatternSend{.stamp = {}, .pattern = &pattern_}, this)),
        kind_(call.kind) {}

  void Start(Channel& channel) { channel.Submit(exchange_); }
  // Any number of times, with this start's number and kind or, to be refused, others.
  void Done(Channel& channel) { Done(channel, static_cast<int32_t>(sequence_), kind_); }
  void Done(Channel& channel, int32_t sequence, kernels::ExchangeKind kind) {
    channel.Attach(new Request(this, kind, sequence));
  }

  // Acquire, with the release of whoever ends a half.
  int starts() const { return starts_.load(std::memory_order_acquire); }
  int ends() const { return ends_.load(std::memory_order_acquire); }
  const Error& start_error() const { return start_error_; }
  // Of the half that ended last.
  const Error& error() const { return error_; }
  int64_t sequence() const { return sequence_; }
  int packs() const { return pattern_.packs(); }
  int rounds() const { return pattern_.rounds(); }
  const std::string& damage() const { return pattern_.damage(); }

 private:
  class Request final : public KernelResultRequest<PatternSend, PatternReceive> {
   public:
    Request(StartedPattern* owner, kernels::ExchangeKind kind, int32_t sequence)
        : KernelResultRequest(
              kind, sequence, PatternSend{.stamp = {}, .pattern = &owner->pattern_},
              [](const PatternReceive& args) { (void)args.pattern->Unpack(args.round, args.slots); },
              PatternReceive{.pattern = &owner->pattern_}),
          owner_(owner) {}
    void End(const Error* error) override {
      owner_->error_ = error == nullptr ? Error{} : *error;
      owner_->ends_.fetch_add(1, std::memory_order_release);
      delete this;
    }

   private:
    StartedPattern* const owner_;
  };

  void Started(const Error* error, int64_t sequence) override {
    if (error != nullptr) start_error_ = *error;
    sequence_ = sequence;
    starts_.fetch_add(1, std::memory_order_release);
  }

  PatternExchange pattern_;
  StartedExchange<PatternSend, PatternReceive>* const exchange_;  // deletes itself
  const kernels::ExchangeKind kind_;
  int64_t sequence_ = 0;
  std::atomic<int> starts_{0};
  std::atomic<int> ends_{0};
  Error start_error_;
  Error error_;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_STARTED_PATTERN_H_
