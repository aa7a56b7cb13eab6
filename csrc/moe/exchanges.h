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

  int64_t RowsOf(int32_t source) const override { return ExpectedRows(kernels_.receive_args, source); }

  Status Unpack(const void* const* slots) override {
    kernels_.receive_args.slots = slots;
    kernels_.receive(kernels_.receive_args);
    return {};
  }

 private:
  Kernels kernels_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_EXCHANGES_H_
