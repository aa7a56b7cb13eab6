// The exchanges of MoE as operations of a channel: a send kernel and a receive kernel with their arguments.
#ifndef JAX_FABRIC_MOE_EXCHANGES_H_
#define JAX_FABRIC_MOE_EXCHANGES_H_

#include "csrc/kernels/moe_kernels.h"
#include "csrc/moe/operation.h"

namespace jax_fabric::moe {

// How many rows a source must have sent, from the routes of the dispatch before; -1: only its message knows.
inline int64_t ExpectedRows(const kernels::DispatchReceiveArgs&, int32_t) { return -1; }
inline int64_t ExpectedRows(const kernels::RedispatchReceiveArgs& args, int32_t source) {
  return args.route.rows[source];
}
inline int64_t ExpectedRows(const kernels::CombineReceiveArgs& args, int32_t source) {
  int64_t rows = 0;
  for (int64_t token = 0; token < args.t_rows; ++token) {
    rows += args.route.index[token * args.layout.shape.ranks + source] >= 0;
  }
  return rows;
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

// The channel fills in stamp, slots and message_bytes of the arguments; the pointers in them stay valid until Finish,
// which a subclass defines.
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
      : ExchangeOperation(site, run, kind, signature), kernels_(kernels) {}

  void Pack(const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) override {
    kernels_.send_args.stamp = stamp;
    kernels_.send_args.slots = slots;
    kernels_.send_args.message_bytes = message_bytes;
    kernels_.send(kernels_.send_args);
  }

  int32_t elements() const override { return Elements(kernels_.receive_args); }
  int64_t RowsOf(int32_t source) const override { return ExpectedRows(kernels_.receive_args, source); }

  Status Unpack(const void* const* slots) override {
    kernels_.receive_args.slots = slots;
    kernels_.receive(kernels_.receive_args);
    return CheckElements(kernels_.receive_args);
  }

 protected:
  void SetReceive(void (*receive)(const ReceiveArgs&), const ReceiveArgs& receive_args) {
    kernels_.receive = receive;
    kernels_.receive_args = receive_args;
  }

 private:
  Kernels kernels_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_EXCHANGES_H_
