#ifndef JAX_FABRIC_BASE_SERIAL_EXECUTOR_H_
#define JAX_FABRIC_BASE_SERIAL_EXECUTOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "csrc/base/executor.h"
#include "csrc/base/mpsc_queue.h"
#include "csrc/base/status.h"

namespace jax_fabric {

// An executor with one thread of its own. Submitting is a push onto a lock-free queue, and a system call only when the
// thread sleeps, which it does after `spin_us` without work.
class SerialExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<SerialExecutor>> Start(std::string name, int64_t spin_us = 50);
  // Stop() should have succeeded: a thread that is stuck in a task is left behind.
  ~SerialExecutor() override;

  // A task that is submitted after Stop runs on the submitting thread.
  void Submit(Task* task) override;

  // Runs what was submitted before, then ends the thread. kDeadlineExceeded when a task does not return within
  // `timeout_us` (call again to go on waiting). Idempotent. Not from a task.
  Status Stop(int64_t timeout_us);

  bool OnThisExecutor() const;

 private:
  // Lives as long as the thread does, which may be longer than the executor.
  struct State;
  explicit SerialExecutor(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_SERIAL_EXECUTOR_H_
