#include "csrc/ffi/host/host_watcher.h"

#include <utility>

namespace jax_fabric::ffi_layer {

Result<std::unique_ptr<HostWatcher>> HostWatcher::Watch(std::shared_ptr<HostEngine> engine, uint64_t initial,
                                                        const nanobind::object& callback) {
  JF_RETURN_IF_ERROR(engine->CheckProcess());
  auto shared = std::make_shared<PythonCallback>(callback);
  JF_ASSIGN_OR_RETURN(std::unique_ptr<Watcher> watcher,
                      engine->engine().Watch(initial, [shared](uint64_t old_value, uint64_t new_value) {
                        (*shared)([&] {
                          return PyTuple_Pack(2, nanobind::int_(old_value).ptr(), nanobind::int_(new_value).ptr());
                        });
                      }));
  engine->ClearAtClose(shared);
  std::unique_ptr<HostWatcher> self(new HostWatcher);
  self->engine_ = std::move(engine);
  self->callback_ = std::move(shared);
  self->word_ = watcher->word();
  self->watcher_ = std::move(watcher);
  return self;
}

void HostWatcher::Close() {
  if (watcher_ == nullptr) return;
  // A callback that is stuck at the interpreter's exit would be waited for.
  if (engine_->InForkedChild() || PythonScope::IsShut()) {
    static_cast<void>(watcher_.release());
    return;
  }
  std::unique_ptr<Watcher> watcher = std::move(watcher_);
  const nanobind::gil_scoped_release released;
  watcher.reset();
}

HostWatcher::~HostWatcher() { Close(); }

}  // namespace jax_fabric::ffi_layer
