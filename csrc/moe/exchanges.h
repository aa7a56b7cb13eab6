// The exchanges of MoE as operations of a channel: a kernel with its arguments, and whom to tell.
#ifndef JAX_FABRIC_MOE_EXCHANGES_H_
#define JAX_FABRIC_MOE_EXCHANGES_H_

#include "csrc/kernels/moe_kernels.h"
#include "csrc/moe/operation.h"

namespace jax_fabric::moe {

// Args is one of the ...SendArgs; the channel fills in stamp, slots and message_bytes. The pointers in it stay valid
// until Finish. A subclass says what Finish does.
template <typename Args>
class KernelStart : public StartOperation {
 public:
  KernelStart(int64_t sequence, kernels::ExchangeKind kind, uint64_t signature, void (*kernel)(const Args&),
              const Args& args)
      : StartOperation(sequence, kind, signature), kernel_(kernel), args_(args) {}

  void Pack(const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) override {
    args_.stamp = stamp;
    args_.slots = slots;
    args_.message_bytes = message_bytes;
    kernel_(args_);
  }

 private:
  void (*const kernel_)(const Args&);
  Args args_;
};

// Args is one of the ...ReceiveArgs; the channel fills in slots.
template <typename Args>
class KernelDone : public DoneOperation {
 public:
  KernelDone(int64_t sequence, kernels::ExchangeKind kind, void (*kernel)(const Args&), const Args& args)
      : DoneOperation(sequence, kind), kernel_(kernel), args_(args) {}

  Status Unpack(const void* const* slots) override {
    args_.slots = slots;
    kernel_(args_);
    return {};
  }

 private:
  void (*const kernel_)(const Args&);
  Args args_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_EXCHANGES_H_
