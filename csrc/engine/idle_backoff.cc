#include "csrc/engine/idle_backoff.h"

#include <algorithm>
#include <thread>

namespace jax_fabric {
namespace {

// A yield that takes longer has let another thread run: that one wanted the core.
constexpr int64_t kLongYieldNs = 3'000;
// While nobody wants the core, a look every half a microsecond, which is what a yield takes, would be late by half of
// that; somebody who comes to want it waits no longer than this.
constexpr int64_t kYieldPauseNs = 10'000;

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
  const int64_t now_ns = clock_.NowNs();
  const int64_t idle_us = (now_ns - idle_since_ns) / 1000;
  if (!core_is_wanted_ && idle_us < policy_.spin_us) return Pause(), true;
  if (idle_us >= yield_us) return false;
  if (!core_is_wanted_ && now_ns < next_yield_ns_) return Pause(), true;
  Yield();
  return true;
}

void IdleBackoff::Yield() {
  const int64_t begin_ns = clock_.NowNs();
  std::this_thread::yield();
  const int64_t end_ns = clock_.NowNs();
  core_is_wanted_ = end_ns - begin_ns > kLongYieldNs;
  next_yield_ns_ = end_ns + std::min(policy_.spin_us * 1000, kYieldPauseNs);
}

}  // namespace jax_fabric
