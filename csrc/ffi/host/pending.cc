#include "csrc/ffi/host/pending.h"

#include <utility>

namespace jax_fabric::ffi_layer {

struct Pending::InFlight {
  ~InFlight() {
    sources.clear();
    pending->drained_.store(true, std::memory_order_seq_cst);
    pending->engine_->hub().Notify();
  }
  std::shared_ptr<Pending> pending;
  std::vector<std::shared_ptr<HostRegion>> sources;
};

struct Pending::Listener {
  Listener(const nanobind::object& function, const nanobind::object& argument_object)
      : callback(function), argument(argument_object.inc_ref().ptr()) {
    task.context = this;
    task.run = [](void* context) {
      std::unique_ptr<Listener> self(static_cast<Listener*>(context));
      self->callback([&] { return PyTuple_Pack(1, self->argument); });
    };
  }
  ~Listener() { DropReference(argument); }

  // Never dereferenced: marks a list that takes nothing any more.
  static Listener* Ended() { return reinterpret_cast<Listener*>(alignof(Listener)); }

  PythonCallback callback;
  PyObject* argument;
  Listener* next = nullptr;
  Task task;
};

Pending::~Pending() {
  Listener* listener = listeners_.load(std::memory_order_relaxed);  // nobody else knows this object any more
  if (listener == Listener::Ended()) return;
  while (listener != nullptr) delete std::exchange(listener, listener->next);
}

WorkerCallback Pending::MakeCallback() {
  WorkerCallback callback;
  callback.context = new std::shared_ptr<Pending>(shared_from_this());
  callback.function = [](void* context, const Error* error) {
    const std::unique_ptr<std::shared_ptr<Pending>> self(static_cast<std::shared_ptr<Pending>*>(context));
    (*self)->Finish(error);
  };
  return callback;
}

void Pending::Forget(const WorkerCallback& callback) {
  delete static_cast<std::shared_ptr<Pending>*>(callback.context);
}

std::shared_ptr<const void> Pending::MakeKeepAlive(std::vector<std::shared_ptr<HostRegion>> sources) {
  auto in_flight = std::make_shared<InFlight>();
  in_flight->pending = shared_from_this();
  in_flight->sources = std::move(sources);
  drained_.store(false, std::memory_order_relaxed);  // handed on by the submission
  return in_flight;
}

void Pending::SetTransfer(Transfer transfer) {
  transfer_ = std::move(transfer);
  ReleaseTransfer();
}

void Pending::ReleaseTransfer() {
  if (transfer_users_.fetch_sub(1, std::memory_order_acq_rel) == 1) transfer_ = Transfer();
}

void Pending::Cancel() {
  int users = transfer_users_.load(std::memory_order_relaxed);
  do {
    if (users == 0) return;
  } while (!transfer_users_.compare_exchange_weak(users, users + 1, std::memory_order_acq_rel));
  transfer_.Cancel();
  ReleaseTransfer();
}

void Pending::Finish(const Error* error) {
  if (error != nullptr) result_ = tl::unexpected<Error>(*error);
  kept_.reset();
  // Sequentially consistent as the hub demands; also releases result_.
  done_.store(true, std::memory_order_seq_cst);
  engine_->hub().Notify();
  ReleaseTransfer();
  Listener* latest_first = listeners_.exchange(Listener::Ended(), std::memory_order_acq_rel);
  Listener* first = nullptr;
  while (latest_first != nullptr) {
    Listener* next = std::exchange(latest_first->next, first);
    first = std::exchange(latest_first, next);
  }
  Executor& executor = engine_->engine().callback_executor();
  while (first != nullptr) executor.Submit(&std::exchange(first, first->next)->task);
}

bool Pending::WaitDone(Deadline deadline) const {
  return engine_->hub().Wait(deadline, [this] { return done(); });
}

bool Pending::WaitDrained(Deadline deadline) const {
  return engine_->hub().Wait(deadline, [this] { return drained(); });
}

void Pending::AddDoneCallback(const nanobind::object& function, const nanobind::object& argument) {
  auto* listener = new Listener(function, argument);
  listener->next = listeners_.load(std::memory_order_relaxed);
  do {
    if (listener->next == Listener::Ended()) return engine_->engine().callback_executor().Submit(&listener->task);
  } while (!listeners_.compare_exchange_weak(listener->next, listener, std::memory_order_acq_rel));
}

}  // namespace jax_fabric::ffi_layer
