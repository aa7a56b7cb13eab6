#include "csrc/ffi/host/fork_generation.h"

#include <pthread.h>

#include <atomic>

namespace jax_fabric::ffi_layer {
namespace {

// Relaxed: it changes in a child's only thread, before that thread goes on.
std::atomic<uint64_t> forks{0};

}  // namespace

uint64_t ForkGeneration() {
  [[maybe_unused]] static const int counting =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return forks.load(std::memory_order_relaxed);
}

}  // namespace jax_fabric::ffi_layer
