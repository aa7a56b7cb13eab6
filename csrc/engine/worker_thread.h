#ifndef JAX_FABRIC_ENGINE_WORKER_THREAD_H_
#define JAX_FABRIC_ENGINE_WORKER_THREAD_H_

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/engine/worker.h"

namespace jax_fabric {

// Steps a worker, and idles in between, on a thread of its own.
class WorkerThread {
 public:
  // Fails when the machine gives no thread.
  static Result<std::unique_ptr<WorkerThread>> Start(Worker& worker, const Clock& clock, std::string name);
  // Stop() must have succeeded.
  ~WorkerThread();

  // Fails with kDeadlineExceeded when a callback on the worker does not return by then (in the machine's own time).
  // Idempotent. Not from the thread itself.
  Status Stop(int64_t timeout_us);

 private:
  WorkerThread(Worker& worker, const Clock& clock, std::string name)
      : worker_(worker), clock_(clock), name_(std::move(name)) {}
  void Run();

  Worker& worker_;
  const Clock& clock_;
  const std::string name_;
  std::atomic<bool> stop_{false};  // release in Stop, acquire in Run
  std::mutex mutex_;
  std::condition_variable stopped_changed_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_WORKER_THREAD_H_
