// What the caller of a channel asks for: a ticket, the first half of an exchange, its second half. Operations belong
// to the channel from submission until Finish, which it calls exactly once.
#ifndef JAX_FABRIC_MOE_OPERATION_H_
#define JAX_FABRIC_MOE_OPERATION_H_

#include <cstdint>

#include "csrc/base/clock.h"
#include "csrc/base/executor.h"
#include "csrc/base/status.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/moe/call_identifier.h"

namespace jax_fabric::moe {

class Channel;

class Operation {
 public:
  virtual ~Operation() = default;
  // On the channel's strand. `error` is null on success and valid only during the call. The operation may delete
  // itself. Must not block, and must not run a user's code.
  virtual void Finish(const Error* error) = 0;

 private:
  friend class Channel;
  Task task_;
  Channel* channel_ = nullptr;
  Deadline deadline_;
};

// Asks for the number of this execution of a call.
class TicketOperation : public Operation {
 public:
  TicketOperation(const CallSite& site, int64_t run) : site(site), run(run) {}
  const CallSite site;
  const int64_t run;
  int64_t sequence = 0;  // out, at least 1

 private:
  friend class Channel;
  uint64_t identity_ = 0;
};

// Packs this rank's messages of exchange `sequence`.
class StartOperation : public Operation {
 public:
  StartOperation(int64_t sequence, kernels::ExchangeKind kind, uint64_t signature)
      : sequence(sequence), kind(kind), signature(signature) {}
  // Fills one slot or staging buffer a rank. Called when all of them are free.
  virtual void Pack(const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) = 0;

  // Only the low 32 bits need to be right (tokens are int32): the channel widens it.
  int64_t sequence;
  const kernels::ExchangeKind kind;
  // Of everything that must be equal on all ranks: shapes, dtypes, which call of which program.
  const uint64_t signature;
};

// Unpacks what the other ranks sent in exchange `sequence`.
class DoneOperation : public Operation {
 public:
  DoneOperation(int64_t sequence, kernels::ExchangeKind kind) : sequence(sequence), kind(kind) {}
  // All messages have come and passed CheckMessage.
  virtual Status Unpack(const void* const* slots) = 0;

  int64_t sequence;  // as in StartOperation
  const kernels::ExchangeKind kind;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_OPERATION_H_
