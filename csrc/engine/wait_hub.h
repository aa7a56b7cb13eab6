#ifndef JAX_FABRIC_ENGINE_WAIT_HUB_H_
#define JAX_FABRIC_ENGINE_WAIT_HUB_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "csrc/base/clock.h"

namespace jax_fabric {

// Where threads wait for what a worker publishes: the end of a transfer, the state of a peer. Whoever publishes pays
// one load while nobody waits.
class WaitHub {
 public:
  // Without threads, `pump` is called over and over by whoever waits and does the work meanwhile.
  explicit WaitHub(const Clock& clock, std::function<void()> pump = nullptr) : clock_(clock), pump_(std::move(pump)) {}

  // After a store that some `ready` may be waiting for (sequentially consistent: see Wait).
  void Notify();

  // Waits until ready() or until the deadline; returns the last ready(). ready() must load what it looks at
  // sequentially consistently. Waits in slices, so that a clock which is not the machine's works as well.
  bool Wait(Deadline deadline, const std::function<bool()>& ready);

  const Clock& clock() const { return clock_; }

 private:
  const Clock& clock_;
  const std::function<void()> pump_;
  // Waiters count themselves, then look; publishers publish, then look for waiters; all sequentially consistent.
  std::atomic<int> waiters_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_WAIT_HUB_H_
