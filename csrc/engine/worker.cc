#include "csrc/engine/worker.h"

#include <algorithm>
#include <limits>
#include <thread>

namespace jax_fabric {
namespace {

// A yield that takes longer has let another thread run: that one wanted the core.
constexpr int64_t kLongYieldNs = 3'000;
// A sleeper looks around that often even if nobody wakes it.
constexpr int64_t kMaxSleepMs = 100;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Worker::Add(GroupDriver* driver) {
  {
    std::lock_guard lock(mutex_);
    new_drivers_.push_back(driver);
    has_new_drivers_.store(true, std::memory_order_release);
  }
  waker_.Wake();
}

void Worker::TakeNewDrivers() {
  std::lock_guard lock(mutex_);
  has_new_drivers_.store(false, std::memory_order_relaxed);
  for (GroupDriver* driver : new_drivers_) {
    drivers_.push_back(driver);
    for (const auto& domain : driver->domains()) {
      all_have_descriptors_ &= domain->wait_fd() >= 0;
      descriptors_.push_back(pollfd{domain->wait_fd(), POLLIN, 0});
    }
  }
  new_drivers_.clear();
}

bool Worker::Step() {
  const Waker::WorkerScope scope;
  if (has_new_drivers_.load(std::memory_order_acquire)) TakeNewDrivers();
  bool busy = false;
  for (GroupDriver* driver : drivers_) busy |= driver->Step(clock_.NowNs());
  return busy;
}

void Worker::Idle(int64_t idle_since_ns) {
  const int64_t now_ns = clock_.NowNs();
  const int64_t idle_us = (now_ns - idle_since_ns) / 1000;
  const bool adaptive = policy_.mode == IdleMode::kAdaptive;
  if (policy_.mode == IdleMode::kSpin || (adaptive && !core_is_wanted_ && idle_us < policy_.spin_us)) return Pause();
  if ((adaptive && idle_us < policy_.yield_us) || !all_have_descriptors_ || waker_.fd() < 0) {
    std::this_thread::yield();
    // Spinning would keep others from the core, among them whoever is to send what this worker waits for.
    core_is_wanted_ = clock_.NowNs() - now_ns > kLongYieldNs;
    return;
  }
  Sleep();
}

bool Worker::PrepareSleep(int* timeout_ms) {
  // From here on submitters wake us; what they pushed before, CanSleep sees (see Waker).
  waker_.AnnounceSleep();
  int64_t earliest_ns = std::numeric_limits<int64_t>::max();
  for (GroupDriver* driver : drivers_) {
    // Arming may find that something came; then the next step will.
    if (!driver->CanSleep() || !driver->ArmWait()) return false;
    earliest_ns = std::min(earliest_ns, driver->earliest_deadline_ns());
  }
  if (has_new_drivers_.load(std::memory_order_acquire)) return false;
  const int64_t left_ms = earliest_ns == std::numeric_limits<int64_t>::max()
                              ? kMaxSleepMs
                              : (earliest_ns - clock_.NowNs() + 999'999) / 1'000'000;
  *timeout_ms = static_cast<int>(std::clamp<int64_t>(left_ms, 0, kMaxSleepMs));
  return *timeout_ms > 0;
}

void Worker::Sleep() {
  if (descriptors_.empty() || descriptors_.front().fd != waker_.fd()) {
    descriptors_.insert(descriptors_.begin(), pollfd{waker_.fd(), POLLIN, 0});
  }
  int timeout_ms = 0;
  if (PrepareSleep(&timeout_ms)) {
    poll(descriptors_.data(), descriptors_.size(), timeout_ms);
    waker_.Drain();
  } else {
    std::this_thread::yield();
  }
  waker_.Awake();
}

}  // namespace jax_fabric
