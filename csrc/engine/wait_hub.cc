#include "csrc/engine/wait_hub.h"

#include <algorithm>
#include <chrono>

namespace jax_fabric {
namespace {

// With a yield after each look, so that it costs others nothing. Being woken takes 20 us and more: a good part of what
// a transfer of a MiB takes.
constexpr int64_t kSpinNs = 200'000;
constexpr int64_t kSliceNs = 5'000'000;

}  // namespace

void WaitHub::Notify() {
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  // Empty, but it makes sure that a waiter is either before its check or inside wait_for.
  {
    std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

bool WaitHub::Wait(Deadline deadline, const std::function<bool()>& ready) {
  if (pump_) {
    while (!ready()) {
      if (deadline.Passed(clock_)) return false;
      pump_();
    }
    return true;
  }
  for (const int64_t spin_end = clock_.NowNs() + kSpinNs; clock_.NowNs() < spin_end;) {
    if (ready()) return true;
    std::this_thread::yield();
  }
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  std::unique_lock lock(mutex_);
  bool is_ready = ready();
  while (!is_ready) {
    const int64_t left_ns = deadline.at_ns - clock_.NowNs();
    if (left_ns <= 0) break;
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(left_ns, kSliceNs)));
    is_ready = ready();
  }
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
  return is_ready;
}

}  // namespace jax_fabric
