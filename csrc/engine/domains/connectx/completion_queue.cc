#include "csrc/engine/domains/connectx/completion_queue.h"

#include <fcntl.h>

#include <cerrno>

namespace jax_fabric::connectx {

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::Create(const VerbsDevice& device, int entries) {
  const Verbs& verbs = device.verbs();
  std::unique_ptr<CompletionQueue> made(new CompletionQueue(verbs));
  made->channel_.reset(verbs.ibv_create_comp_channel(device.context()));
  if (made->channel_ == nullptr) {
    return MakeError(ErrorCode::kResourceExhausted, "{}: no completion channel: {}", device.name(), ErrnoWords(errno));
  }
  const int fd = made->channel_->fd;
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
    return MakeError(ErrorCode::kInternal, "{}: completion channel: {}", device.name(), ErrnoWords(errno));
  }
  made->queue_.reset(verbs.ibv_create_cq(device.context(), entries, nullptr, made->channel_.get(), 0));
  if (made->queue_ == nullptr) {
    return MakeError(ErrorCode::kResourceExhausted, "{}: no completion queue of {} entries: {}", device.name(), entries,
                     ErrnoWords(errno));
  }
  return made;
}

CompletionQueue::CompletionQueue(const Verbs& verbs)
    : verbs_(verbs), channel_(nullptr, verbs.ibv_destroy_comp_channel), queue_(nullptr, verbs.ibv_destroy_cq) {}

// The library waits in ibv_destroy_cq for events that nobody has acknowledged; TakeEvents leaves none.
CompletionQueue::~CompletionQueue() = default;

bool CompletionQueue::Arm() { return ibv_req_notify_cq(queue_.get(), 0) == 0; }

void CompletionQueue::TakeEvents() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (verbs_.ibv_get_cq_event(channel_.get(), &queue, &context) == 0) verbs_.ibv_ack_cq_events(queue, 1);
}

}  // namespace jax_fabric::connectx
