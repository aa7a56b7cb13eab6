#ifndef JAX_FABRIC_ENGINE_TRANSFER_H_
#define JAX_FABRIC_ENGINE_TRANSFER_H_

#include <utility>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"

namespace jax_fabric {

class Submission;

// A submitted request. Copies speak of the same request; dropping them does not stop it. To be dropped before the
// engine goes. Thread-safe like a pointer.
class Transfer {
 public:
  Transfer() = default;
  // Takes over one reference.
  explicit Transfer(Submission* submission) : submission_(submission) {}
  Transfer(const Transfer& other);
  Transfer(Transfer&& other) noexcept : submission_(std::exchange(other.submission_, nullptr)) {}
  Transfer& operator=(Transfer other) noexcept {
    std::swap(submission_, other.submission_);
    return *this;
  }
  ~Transfer();

  // Ended: in success, an error, or cancelled.
  bool done() const;
  // How it ended, or kDeadlineExceeded when it has not by then (the request goes on; it has its own deadline).
  // Not on a worker: there kFailedPrecondition.
  Status Wait(Deadline deadline) const;
  // Nothing of the request is in flight any more. Implied by done(), unless its deadline passed.
  bool drained() const;
  // What is not posted yet is withdrawn. Ends with kCancelled, unless it has ended by itself, once nothing of it is in
  // flight here. That proves nothing about the target's memory (domain.h, promise 1); a grant does (write_grant.h).
  void Cancel();

 private:
  Submission* submission_ = nullptr;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_TRANSFER_H_
