// One call as its caller asks for it: one exchange, or one for each round. It belongs to the channel from submission
// until Finish, which the channel calls exactly once.
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
class ResultRequest;

class ExchangeOperation {
 public:
  // `site` and `run` say which call this is, the same on all ranks. `signature` is a hash of everything else that must
  // be equal on all ranks: shapes, dtypes, options.
  ExchangeOperation(const CallSite& site, int64_t run, kernels::ExchangeKind kind, uint64_t signature)
      : site_(site), run_(run), kind_(kind), signature_(signature) {}
  virtual ~ExchangeOperation() = default;

  // All on the channel's strand, Pack and Unpack of each round in turn; none may block or run a user's code.
  // Fills this rank's message for each rank, in its slot or a staging buffer.
  virtual void Pack(int32_t round, const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) = 0;
  // Batches in one exchange, each with the context's capacity.
  virtual int32_t elements() const = 0;
  // What the source must have sent.
  virtual kernels::ExpectedRows RowsOf(int32_t round, int32_t source) const = 0;
  // All messages have come and passed CheckMessage.
  virtual Status Unpack(int32_t round, const void* const* slots) = 0;
  // How many rounds the call takes, the same on all ranks; 0 as long as that is not known, at most until the first
  // Unpack.
  virtual int32_t rounds() const = 0;
  // `error` is null on success and valid only during the call. The operation may delete itself.
  virtual void Finish(const Error* error) = 0;
  // Of an operation in two halves (started_exchange.h): takes the second one, or refuses what is not its own. It can be
  // unpacked from then on.
  virtual bool Attach(ResultRequest&) { return false; }
  virtual bool can_unpack() const { return true; }

  kernels::ExchangeKind kind() const { return kind_; }
  // The call's number on its channel, from Pack on.
  int64_t sequence() const { return sequence_; }

 private:
  friend class Channel;

  const CallSite site_;
  const int64_t run_;
  const kernels::ExchangeKind kind_;
  const uint64_t signature_;

  Task task_;
  Channel* channel_ = nullptr;
  Deadline deadline_;
  uint64_t identity_ = 0;
  int64_t sequence_ = 0;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_OPERATION_H_
