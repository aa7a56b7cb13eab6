// The exchanges of MoE as operations of a channel: a send kernel and a receive kernel with their arguments.
#ifndef JAX_FABRIC_MOE_EXCHANGES_H_
#define JAX_FABRIC_MOE_EXCHANGES_H_

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/rounds.h"
#include "csrc/moe/operation.h"

namespace jax_fabric::moe {

// What a source must have sent, by the routes of the dispatch before, or of this one's first round.
inline kernels::ExpectedRows RowsOnRoute(const kernels::SlotLayout& layout, const kernels::ReceiveRoute& route,
                                         int32_t round, int32_t source) {
  const kernels::IndexRange rows = kernels::RowsInRound(layout.shape, route, source, round);
  return {.round = round, .rows = rows.size(), .first_row = rows.begin};
}
inline kernels::ExpectedRows RowsFrom(const kernels::DispatchReceiveArgs& args, int32_t round, int32_t source) {
  if (round == 0) return {};
  return RowsOnRoute(args.layout, args.route, round, source);
}
inline kernels::ExpectedRows RowsFrom(const kernels::RedispatchReceiveArgs& args, int32_t round, int32_t source) {
  return RowsOnRoute(args.layout, args.route, round, source);
}
inline kernels::ExpectedRows RowsFrom(const kernels::CombineReceiveArgs& args, int32_t round, int32_t source) {
  const kernels::MoeShape& shape = args.layout.shape;
  const kernels::IndexRange tokens = kernels::TokensInRound(shape, args.route, args.t_rows, round);
  kernels::ExpectedRows expected{.round = round, .rows = 0};
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    const int32_t index = args.route.index[token * shape.ranks + source];
    if (index < 0) continue;
    if (expected.rows == 0) expected.first_row = index;
    ++expected.rows;
  }
  return expected;
}

// How many rounds the routes call for; only the messages of a dispatch know.
inline int32_t RoundsOfCall(const kernels::DispatchSendArgs& args, const kernels::DispatchReceiveArgs&) {
  return args.layout.shape.MaxRounds() == 1 ? 1 : 0;
}
inline int32_t RoundsOfCall(const kernels::CombineSendArgs& args, const kernels::CombineReceiveArgs&) {
  return kernels::RoundsOf(args.layout.shape, args.route);
}
inline int32_t RoundsOfCall(const kernels::RedispatchSendArgs&, const kernels::RedispatchReceiveArgs& args) {
  return kernels::RoundsOf(args.layout.shape, args.route);
}
inline int32_t RoundsAfterUnpack(const kernels::DispatchReceiveArgs& args, int32_t) {
  return kernels::RoundsOf(args.layout.shape, args.route);
}
template <typename ReceiveArgs>
int32_t RoundsAfterUnpack(const ReceiveArgs&, int32_t rounds) {
  return rounds;
}

// The counts on the wire are of whole ranks; that one element of several has overflowed is known here only.
inline Status CheckElements(const kernels::DispatchReceiveArgs& args) {
  if (args.drop_overflow || args.elements == 1) return {};
  for (int32_t b = 0; b < args.elements; ++b) {
    if (args.dropped[b] == 0) continue;
    return MakeError(ErrorCode::kResourceExhausted,
                     "moe dispatch: element {} of a batch of {} has {} rows more for rank {} than capacity={}. Raise "
                     "capacity, or pass on_overflow=\"drop\".",
                     b, args.elements, args.dropped[b], args.layout.shape.rank, args.layout.shape.capacity);
  }
  return {};
}
template <typename ReceiveArgs>
Status CheckElements(const ReceiveArgs&) {
  return {};
}

template <typename ReceiveArgs>
int32_t Elements(const ReceiveArgs&) {
  return 1;
}
inline int32_t Elements(const kernels::DispatchReceiveArgs& args) { return args.elements; }

// The channel fills in round, stamp, slots and message_bytes of the arguments; the pointers in them stay valid until
// Finish, which a subclass defines.
template <typename SendArgs, typename ReceiveArgs>
class KernelExchange : public ExchangeOperation {
 public:
  struct Kernels {
    void (*send)(const SendArgs&) = nullptr;
    SendArgs send_args;
    void (*receive)(const ReceiveArgs&) = nullptr;
    ReceiveArgs receive_args;
  };

  KernelExchange(const CallSite& site, int64_t run, kernels::ExchangeKind kind, uint64_t signature,
                 const Kernels& kernels)
      : ExchangeOperation(site, run, kind, signature),
        kernels_(kernels),
        rounds_(RoundsOfCall(kernels.send_args, kernels.receive_args)) {}

  void Pack(int32_t round, const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) override {
    kernels_.send_args.round = round;
    kernels_.send_args.stamp = stamp;
    kernels_.send_args.slots = slots;
    kernels_.send_args.message_bytes = message_bytes;
    kernels_.send(kernels_.send_args);
  }

  int32_t elements() const override { return Elements(kernels_.receive_args); }
  kernels::ExpectedRows RowsOf(int32_t round, int32_t source) const override {
    return RowsFrom(kernels_.receive_args, round, source);
  }
  int32_t rounds() const override { return rounds_; }

  Status Unpack(int32_t round, const void* const* slots) override {
    kernels_.receive_args.round = round;
    kernels_.receive_args.slots = slots;
    kernels_.receive(kernels_.receive_args);
    if (round > 0) return {};
    rounds_ = RoundsAfterUnpack(kernels_.receive_args, rounds_);
    return CheckElements(kernels_.receive_args);
  }

 protected:
  // For an operation in two halves: where results go, and what the rounds after the first one send.
  void SetSecondHalf(const SendArgs& send_args, void (*receive)(const ReceiveArgs&), const ReceiveArgs& receive_args) {
    kernels_.send_args = send_args;
    kernels_.receive = receive;
    kernels_.receive_args = receive_args;
  }

 private:
  Kernels kernels_;
  int32_t rounds_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_EXCHANGES_H_
