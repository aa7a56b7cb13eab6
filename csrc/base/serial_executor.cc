#include "csrc/base/serial_executor.h"

#include <chrono>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/base/thread.h"

namespace jax_fabric {

struct SerialExecutor::State {
  std::string name;
  int64_t spin_ns = 0;
  MpscQueue<Task> queue;
  // Set before the thread looks at the queue for the last time before it sleeps, loaded after a push; both
  // sequentially consistent, so either the thread sees the task or the submitter sees that it sleeps.
  std::atomic<bool> sleeping{false};
  std::atomic<bool> stop{false};  // release in Stop, acquire in the thread
  // After the thread's last look at the queue; sequentially consistent against the push, as for `sleeping`.
  std::atomic<bool> finished{false};
  std::atomic<bool> late{false};
  std::mutex mutex;  // of sleeping and of `exited`
  std::condition_variable wake;
  std::condition_variable finish;
  bool exited = false;
  // The thread that runs tasks. Relaxed: a thread asks only whether it is itself.
  std::atomic<std::thread::id> runner{};

  bool RunAll() {
    Task* task = queue.TakeAll();
    if (task == nullptr) return false;
    while (task != nullptr) {
      Task* next = task->next;  // the task may be submitted again, or be gone, once it has started
      task->run(task->context);
      task = next;
    }
    return true;
  }

  void Sleep() {
    std::unique_lock lock(mutex);
    sleeping.store(true, std::memory_order_seq_cst);
    if (queue.Empty() && !stop.load(std::memory_order_seq_cst)) {
      // Bounded, so that even a lost wake-up is only a delay.
      wake.wait_for(lock, std::chrono::milliseconds(100));
    }
    sleeping.store(false, std::memory_order_relaxed);
  }

  void Run() {
    runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
    const Clock& clock = SteadyClock::Get();
    int64_t busy_ns = clock.NowNs();
    while (!stop.load(std::memory_order_acquire)) {
      if (RunAll()) {
        busy_ns = clock.NowNs();
      } else if (clock.NowNs() - busy_ns < spin_ns) {
        std::this_thread::yield();
      } else {
        Sleep();
      }
    }
    runner.store(std::thread::id(), std::memory_order_relaxed);
    finished.store(true, std::memory_order_seq_cst);
    RunLate();
    std::lock_guard lock(mutex);
    exited = true;
    finish.notify_all();
  }

  // In place of the finished thread; tasks still run one at a time. Whoever finds `late` set leaves its task to the
  // one that has set it, who looks at the queue again after clearing it. All sequentially consistent: a task pushed
  // before such a failed exchange is seen by that look. Tasks that submit tasks come here, too, and return at once.
  void RunLate() {
    while (!queue.Empty() && !late.exchange(true, std::memory_order_seq_cst)) {
      runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
      RunAll();
      runner.store(std::thread::id(), std::memory_order_relaxed);
      late.store(false, std::memory_order_seq_cst);
    }
  }
};

Result<std::unique_ptr<SerialExecutor>> SerialExecutor::Start(std::string name, int64_t spin_us) {
  auto state = std::make_shared<State>();
  state->name = std::move(name);
  state->spin_ns = spin_us * 1000;
  std::unique_ptr<SerialExecutor> executor(new SerialExecutor(state));
  JF_ASSIGN_OR_RETURN(executor->thread_, StartThread(state->name, [state] { state->Run(); }));
  return executor;
}

SerialExecutor::~SerialExecutor() {
  [[maybe_unused]] const Status stopped = Stop(/*timeout_us=*/1'000'000);
  if (thread_.joinable()) thread_.detach();  // it keeps its state
}

void SerialExecutor::Submit(Task* task) {
  State& state = *state_;
  state.queue.Push(task);
  if (state.sleeping.load(std::memory_order_seq_cst)) {
    {
      std::lock_guard lock(state.mutex);
    }
    state.wake.notify_one();
  }
  if (state.finished.load(std::memory_order_seq_cst)) state.RunLate();
}

bool SerialExecutor::OnThisExecutor() const {
  return state_->runner.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

Status SerialExecutor::Stop(int64_t timeout_us) {
  if (!thread_.joinable()) return {};
  State& state = *state_;
  if (OnThisExecutor()) {
    return MakeError(ErrorCode::kFailedPrecondition, "executor '{}' cannot be stopped by one of its own tasks",
                     state.name);
  }
  std::unique_lock lock(state.mutex);
  state.stop.store(true, std::memory_order_seq_cst);
  state.wake.notify_one();
  if (!state.finish.wait_for(lock, std::chrono::microseconds(timeout_us), [&] { return state.exited; })) {
    return MakeError(ErrorCode::kDeadlineExceeded, "executor '{}' did not stop within {} us: a task blocks", state.name,
                     timeout_us);
  }
  lock.unlock();
  thread_.join();
  return {};
}

}  // namespace jax_fabric
