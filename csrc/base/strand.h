// Serialises tasks without a lock: a state machine that runs on a strand needs no synchronisation of its own, and
// runs unchanged on one thread of the simulated fabric.
#ifndef JAX_FABRIC_BASE_STRAND_H_
#define JAX_FABRIC_BASE_STRAND_H_

#include <atomic>
#include <cstdint>

#include "csrc/base/executor.h"
#include "csrc/base/mpsc_queue.h"

namespace jax_fabric {

class Strand {
 public:
  // Tasks posted from threads that must not run them go to `executor`.
  explicit Strand(Executor* executor);
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  // Never runs anything on this thread. For worker threads.
  void Post(Task* task);
  // Runs the task, and whatever else is queued, on this thread if the strand is idle: no thread switch. For threads
  // that may compute. Otherwise whoever runs the strand now runs the task too.
  void PostOrRun(Task* task);

  // For a thread that has run a task on it by itself, when no more will be posted: whether all others have left it. It
  // may be destroyed then, and not before: a task can have run while the thread that posted it has yet to count it.
  // acquire, with the fetch_add of Push and the fetch_sub of Drain: all that those threads did here came before.
  bool IsIdle() const { return pending_.load(std::memory_order_acquire) == 0; }

 private:
  // True if the strand was idle: the caller must see to it that Drain runs.
  bool Push(Task* task);
  void Drain();

  Executor* const executor_;
  MpscQueue<Task> queue_;
  // Tasks pushed and not yet finished. The thread that raises it from zero owns the strand until it is zero again.
  std::atomic<int64_t> pending_{0};
  Task drain_task_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_STRAND_H_
