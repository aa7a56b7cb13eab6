#include "csrc/engine/worker_thread.h"

#include <chrono>
#include <cstring>
#include <memory>

#include "csrc/base/thread.h"

namespace jax_fabric {

Result<std::unique_ptr<WorkerThread>> WorkerThread::Start(Worker& worker, const Clock& clock, std::string name) {
  std::unique_ptr<WorkerThread> self(new WorkerThread(worker, clock, std::move(name)));
  JF_ASSIGN_OR_RETURN(self->thread_, StartThread(self->name_, [raw = self.get()] { raw->Run(); }));
  return self;
}

void WorkerThread::Run() {
  int64_t busy_ns = clock_.NowNs();
  while (!stop_.load(std::memory_order_acquire)) {
    if (worker_.Step()) {
      busy_ns = clock_.NowNs();
    } else {
      worker_.Idle(busy_ns);
    }
  }
  std::lock_guard lock(mutex_);
  stopped_ = true;
  stopped_changed_.notify_all();
}

Status WorkerThread::Stop(int64_t timeout_us) {
  if (!thread_.joinable()) return {};
  if (thread_.get_id() == std::this_thread::get_id()) {
    return MakeError(ErrorCode::kFailedPrecondition, "thread '{}' cannot stop itself: close from another thread",
                     name_);
  }
  stop_.store(true, std::memory_order_release);
  worker_.waker().Wake();
  std::unique_lock lock(mutex_);
  if (!stopped_changed_.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return stopped_; })) {
    return MakeError(ErrorCode::kDeadlineExceeded, "thread '{}' did not stop within {} us: a callback on it blocks",
                     name_, timeout_us);
  }
  lock.unlock();
  thread_.join();
  return {};
}

WorkerThread::~WorkerThread() {
  // A destructor that waited for a stuck callback would hang the program's exit; the owner reports it.
  if (thread_.joinable()) thread_.detach();
}

}  // namespace jax_fabric
