// Worker: drives any number of groups, one step at a time, without ever blocking.
#ifndef JAX_FABRIC_ENGINE_WORKER_H_
#define JAX_FABRIC_ENGINE_WORKER_H_

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/engine/group_driver.h"
#include "csrc/engine/idle_backoff.h"
#include "csrc/engine/idle_policy.h"
#include "csrc/engine/waker.h"

namespace jax_fabric {

class Worker {
 public:
  Worker(const Clock& clock, IdlePolicy policy) : clock_(clock), backoff_(clock, policy) {}

  // Any thread. The driver stays until the worker is not stepped any more.
  void Add(GroupDriver* driver);
  Waker& waker() { return waker_; }

  // --- by one thread at a time
  // Returns whether anything happened.
  bool Step();
  // After a step in which nothing happened: spins, yields or sleeps as the policy says, `idle_since_ns` being the
  // moment when something last happened. Sleeps at most until the next deadline, and with pollers 50 us.
  void Idle(int64_t idle_since_ns);

 private:
  void TakeNewDrivers();
  void Sleep();
  // How long it may sleep, ns; 0 when something came up meanwhile.
  int64_t PrepareSleep();
  // Somebody waits for what a poller does.
  bool urgent() const;

  const Clock& clock_;
  IdleBackoff backoff_;  // of the stepping thread
  Waker waker_;
  std::vector<GroupDriver*> drivers_;  // of the stepping thread
  std::vector<pollfd> descriptors_;    // the waker's, then the domains'
  bool all_have_descriptors_ = true;   // else nothing would wake us: then it only yields

  std::atomic<bool> has_new_drivers_{false};  // release in Add, acquire in Step
  std::mutex mutex_;
  std::vector<GroupDriver*> new_drivers_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_WORKER_H_
