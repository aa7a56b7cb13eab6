// Where work that must not run on a worker thread goes: user callbacks, XLA promises, receive kernels.
#ifndef JAX_FABRIC_BASE_EXECUTOR_H_
#define JAX_FABRIC_BASE_EXECUTOR_H_

namespace jax_fabric {

// Owned by whoever submits it and reusable once it has run: submitting allocates nothing.
struct Task {
  void (*run)(void* context) = nullptr;
  void* context = nullptr;
  Task* next = nullptr;  // used by the executor while the task is queued
};

class Executor {
 public:
  virtual ~Executor() = default;
  // Thread-safe and non-blocking. A task must not be submitted again before it has started to run.
  // Tasks of one executor run one at a time, in the order of submission.
  virtual void Submit(Task* task) = 0;
};

// Runs the task where it is submitted: for tests and the simulated fabric.
class InlineExecutor final : public Executor {
 public:
  void Submit(Task* task) override { task->run(task->context); }
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_EXECUTOR_H_
