#include "csrc/engine/idle_backoff.h"

#include <thread>

namespace jax_fabric {
namespace {

// A yield that takes longer has let another thread run: that one wanted the core.
constexpr int64_t kLongYieldNs = 3'000;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool IdleBackoff::Wait(int64_t idle_since_ns, int64_t yield_us) {
  if (policy_.mode == IdleMode::kSpin) return Pause(), true;
  if (policy_.mode == IdleMode::kSleep) return false;
  const int64_t idle_us = (clock_.NowNs() - idle_since_ns) / 1000;
  if (!core_is_wanted_ && idle_us < policy_.spin_us) return Pause(), true;
  if (idle_us >= yield_us) return false;
  Yield();
  return true;
}

void IdleBackoff::Yield() {
  const int64_t begin_ns = clock_.NowNs();
  std::this_thread::yield();
  core_is_wanted_ = clock_.NowNs() - begin_ns > kLongYieldNs;
}

}  // namespace jax_fabric
