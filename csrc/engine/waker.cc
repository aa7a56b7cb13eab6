#include "csrc/engine/waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace jax_fabric {

Waker::Waker() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Waker::~Waker() {
  if (fd_ >= 0) close(fd_);
}

void Waker::Wake() {
  const uint64_t one = 1;
  // It fails only when the count is full: the descriptor is readable then anyway.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

void Waker::Drain() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
}

}  // namespace jax_fabric
