#include "csrc/engine/worker.h"

#include <algorithm>
#include <limits>
#include <thread>

namespace jax_fabric {
namespace {

// A sleeper looks around that often even if nobody wakes it.
constexpr int64_t kMaxSleepNs = 100'000'000;
// Nothing wakes a reader of memory: this is how late a poller may be called.
constexpr int64_t kPollerPauseNs = 50'000;
constexpr int64_t kUrgentYieldUs = 1'000'000;

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

bool Worker::urgent() const {
  return std::any_of(drivers_.begin(), drivers_.end(), [](GroupDriver* driver) { return driver->pollers().urgent(); });
}

void Worker::Idle(int64_t idle_since_ns) {
  if (backoff_.Wait(idle_since_ns, urgent() ? std::max(kUrgentYieldUs, backoff_.yield_us()) : backoff_.yield_us())) {
    return;
  }
  if (!all_have_descriptors_ || waker_.fd() < 0) return backoff_.Yield();
  Sleep();
}

int64_t Worker::PrepareSleep() {
  // From here on submitters wake us; what they pushed before, CanSleep sees (see Waker).
  waker_.AnnounceSleep();
  int64_t earliest_ns = std::numeric_limits<int64_t>::max(), longest_ns = kMaxSleepNs;
  for (GroupDriver* driver : drivers_) {
    // Arming may find that something came; then the next step will.
    if (!driver->CanSleep() || !driver->ArmWait()) return 0;
    earliest_ns = std::min(earliest_ns, driver->earliest_deadline_ns());
    if (driver->pollers().size() > 0) longest_ns = kPollerPauseNs;
  }
  if (has_new_drivers_.load(std::memory_order_acquire)) return 0;
  if (earliest_ns == std::numeric_limits<int64_t>::max()) return longest_ns;
  return std::clamp<int64_t>(earliest_ns - clock_.NowNs(), 0, longest_ns);
}

void Worker::Sleep() {
  if (descriptors_.empty() || descriptors_.front().fd != waker_.fd()) {
    descriptors_.insert(descriptors_.begin(), pollfd{waker_.fd(), POLLIN, 0});
  }
  if (const int64_t sleep_ns = PrepareSleep(); sleep_ns > 0) {
    const timespec timeout{.tv_sec = 0, .tv_nsec = sleep_ns};
    ppoll(descriptors_.data(), descriptors_.size(), &timeout, nullptr);
    waker_.Drain();
  } else {
    std::this_thread::yield();
  }
  waker_.Awake();
}

}  // namespace jax_fabric
