#ifndef JAX_FABRIC_ENGINE_WAKER_H_
#define JAX_FABRIC_ENGINE_WAKER_H_

#include <atomic>

namespace jax_fabric {

// Lets submitters wake a worker that sleeps, at the price of one load where it does not.
//
// Dekker's argument: the submitter pushes and then loads `sleeping`; the worker stores `sleeping` and then looks at
// its queues. All four are sequentially consistent, so at least one side sees the other: either the worker finds the
// request and does not sleep, or the submitter finds it asleep and wakes it.
class Waker {
 public:
  Waker();
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  // Any thread, after a push.
  void WakeIfSleeping() {
    if (sleeping_.load(std::memory_order_seq_cst)) Wake();
  }
  void Wake();

  // Worker only.
  void AnnounceSleep() { sleeping_.store(true, std::memory_order_seq_cst); }
  void Awake() { sleeping_.store(false, std::memory_order_relaxed); }  // a needless Wake does no harm
  // Readable after Wake until Drain; -1 when the machine has no file descriptor left (then nothing sleeps).
  int fd() const { return fd_; }
  void Drain();

  // Whether this thread is inside a worker's step, where nothing may block.
  static bool OnWorker() { return on_worker; }
  class WorkerScope {
   public:
    WorkerScope() : outer_(on_worker) { on_worker = true; }
    ~WorkerScope() { on_worker = outer_; }

   private:
    const bool outer_;
  };

 private:
  static inline thread_local bool on_worker = false;

  std::atomic<bool> sleeping_{false};
  int fd_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_WAKER_H_
