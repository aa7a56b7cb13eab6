#include "csrc/base/strand.h"

namespace jax_fabric {

Strand::Strand(Executor* executor) : executor_(executor) {
  drain_task_.run = [](void* self) { static_cast<Strand*>(self)->Drain(); };
  drain_task_.context = this;
}

void Strand::Post(Task* task) {
  if (Push(task)) executor_->Submit(&drain_task_);
}

void Strand::PostOrRun(Task* task) {
  if (Push(task)) Drain();
}

bool Strand::Push(Task* task) {
  queue_.Push(task);
  // acq_rel: ownership of the strand passes from the thread that brought pending_ to zero to the one that raises it.
  return pending_.fetch_add(1, std::memory_order_acq_rel) == 0;
}

void Strand::Drain() {
  int64_t left = 0;
  do {
    Task* task = queue_.TakeAll();
    int64_t ran = 0;
    while (task != nullptr) {
      // Read before running: the task may be freed or posted again by its own run.
      Task* next = task->next;
      task->run(task->context);
      task = next;
      ++ran;
    }
    // A task can be taken before its Push has counted it; pending_ is then negative for a moment, and the strand goes
    // to whoever's count crosses zero next. Only the owner subtracts, so there is never a second one.
    left = pending_.fetch_sub(ran, std::memory_order_acq_rel) - ran;
  } while (left > 0);
}

}  // namespace jax_fabric
