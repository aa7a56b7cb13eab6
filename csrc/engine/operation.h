// Operation: anything that posts to domains. Knows what to post; when is the GroupDriver's business.
#ifndef JAX_FABRIC_ENGINE_OPERATION_H_
#define JAX_FABRIC_ENGINE_OPERATION_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/engine/deadline_list.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/driver_request.h"
#include "csrc/engine/peer.h"
#include "csrc/engine/write_grant.h"

namespace jax_fabric {

// How an operation ends. Either kDone; or kReported (its deadline passed while posts were in flight, which may still
// read the source and write the target) and, once they have completed, kDrained.
enum class Settlement : uint8_t { kDone, kReported, kDrained };

class OperationOwner {
 public:
  // On the worker, with null for success. After kDone and kDrained the driver touches the operation no more.
  virtual void OnSettled(const Error* error, Settlement settlement) = 0;

 protected:
  ~OperationOwner() = default;
};

class Operation : public DriverRequest, public DeadlineNode {
 public:
  enum class OnFailure : uint8_t {
    kWithdraw,  // what has not been posted is not posted any more
    kContinue,  // the other targets have nothing to do with it
  };

  explicit Operation(std::string_view verb, OnFailure on_failure) : verb_(verb), on_failure_(on_failure) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Before it is submitted.
  void Prepare(OperationOwner* owner, Deadline deadline, const std::optional<WriteGrant>& grant = {}) {
    owner_ = owner;
    deadline_ = deadline;
    grant_ = grant;
  }

  void Start(GroupDriver& driver) final;

  // --- worker only
  const std::optional<WriteGrant>& grant() const { return grant_; }
  // Where there is a grant, all goes to the peer that gave it.
  PeerHandle peer_of_grant() { return streams().front().lane->peer->handle; }
  // Writes that were ever posted, and those of them that have succeeded.
  uint64_t posted();
  uint64_t succeeded() const { return done_; }

 protected:
  // For operations that are used for several things.
  void SetKind(std::string_view verb, OnFailure on_failure) {
    verb_ = verb;
    on_failure_ = on_failure;
  }
  virtual std::span<Stream> streams() = 0;
  // Names the pieces that a write from `source_offset` and to `target_offset` behind the stream's ends lies in.
  static void UsePieces(const Stream& stream, uint64_t source_offset, uint64_t target_offset, WriteRequest& request);
  // Makes post `stream.next_index`, and those after it if the domain takes several at once: `posted` of them, at most
  // `room`, if it is kPosted.
  virtual PostResult Post(Domain& domain, Stream& stream, uint32_t room, uint32_t& posted) = 0;

 private:
  friend class GroupDriver;

  bool finished() const { return in_flight_ == 0 && queued_streams_ == 0; }
  void Rewind();
  // Only the first one is kept.
  void Fail(ErrorCode code, std::string cause, const Lane* lane = nullptr);
  bool failed() const { return error_.code != ErrorCode::kOk; }
  // "scatter: <cause>; 3 of 8 writes done, 2 still in flight"
  Error Describe(std::string_view group) const;
  // The deadline passed: names the peers that have not done their part, "peer 1 'b' over mlx5_0 (and 3 more)".
  void FailLate();

  std::string_view verb_;
  OnFailure on_failure_;
  OperationOwner* owner_ = nullptr;
  Deadline deadline_;
  std::optional<WriteGrant> grant_;

  // Worker only, valid between Start and the last settlement.
  uint64_t total_ = 0;
  uint64_t done_ = 0;
  uint64_t in_flight_ = 0;
  uint64_t queued_streams_ = 0;
  bool reported_ = false;
  bool admitted_ = false;  // under its grant
  Error error_{ErrorCode::kOk, {}};
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_OPERATION_H_
