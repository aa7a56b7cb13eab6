#include "csrc/ffi/host/host_watcher.h"

#include <chrono>
#include <thread>
#include <utility>

namespace jax_fabric::ffi_layer {

Result<std::unique_ptr<HostWatcher>> HostWatcher::Watch(std::shared_ptr<HostEngine> engine, uint64_t initial,
                                                        const nanobind::object& callback, NativeFunction native,
                                                        std::shared_ptr<uint64_t> given) {
  JF_RETURN_IF_ERROR(engine->CheckProcess());
  auto shared = std::make_shared<PythonCallback>(callback);
  Watcher::Callback call = [shared](uint64_t old_value, uint64_t new_value) {
    (*shared)([&] { return PyTuple_Pack(2, nanobind::int_(old_value).ptr(), nanobind::int_(new_value).ptr()); });
  };
  if (native.function != nullptr) {
    call = [shared, native](uint64_t old_value, uint64_t new_value) {
      native.function(old_value, new_value, native.context);
    };
  }
  JF_ASSIGN_OR_RETURN(std::unique_ptr<Watcher> watcher,
                      engine->engine().Watch(initial, std::move(call), std::move(given)));
  engine->ClearAtClose(shared);
  std::unique_ptr<HostWatcher> self(new HostWatcher);
  self->engine_ = std::move(engine);
  self->callback_ = std::move(shared);
  self->word_ = watcher->word();
  self->watcher_ = std::move(watcher);
  return self;
}

void HostWatcher::Stop() {
  // In a forked child nobody polls, and the lock of the list may have been held.
  if (!engine_->InForkedChild()) watcher_->Stop();
}

bool HostWatcher::WaitUntilReturned(Deadline deadline) const {
  while (!engine_->InForkedChild() && watcher_->running()) {
    if (deadline.Passed(SteadyClock::Get())) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

HostWatcher::~HostWatcher() {
  Stop();
  // Its destructor would wait for the callback, which may want the GIL, or never return. What that uses is shared.
  if (engine_->InForkedChild() || watcher_->running()) static_cast<void>(watcher_.release());
}

}  // namespace jax_fabric::ffi_layer
