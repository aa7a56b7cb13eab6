#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_COMPLETION_QUEUE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_COMPLETION_QUEUE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>

#include "csrc/base/status.h"
#include "csrc/engine/domains/connectx/verbs_device.h"

namespace jax_fabric::connectx {

// A completion queue and the file descriptor by which its owner may sleep until something comes. One thread.
class CompletionQueue {
 public:
  // `device` outlives it.
  static Result<std::unique_ptr<CompletionQueue>> Create(const VerbsDevice& device, int entries);
  ~CompletionQueue();

  ibv_cq* get() const { return queue_.get(); }
  // How many entries of `work` it has filled; below 0: the queue is of no use any more.
  int Poll(std::span<ibv_wc> work) { return ibv_poll_cq(queue_.get(), static_cast<int>(work.size()), work.data()); }

  int wait_fd() const { return channel_->fd; }
  // The descriptor becomes readable with the next entry; what came before it only Poll tells. False: it does not.
  bool Arm();
  // What has made it readable, so that it can be again.
  void TakeEvents();

 private:
  explicit CompletionQueue(const Verbs& verbs);

  const Verbs& verbs_;
  Owned<ibv_comp_channel> channel_;
  Owned<ibv_cq> queue_;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_COMPLETION_QUEUE_H_
