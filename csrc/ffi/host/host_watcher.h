#ifndef JAX_FABRIC_FFI_HOST_HOST_WATCHER_H_
#define JAX_FABRIC_FFI_HOST_HOST_WATCHER_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "csrc/base/status.h"
#include "csrc/engine/watcher.h"
#include "csrc/ffi/host/host_engine.h"

namespace jax_fabric::ffi_layer {

// What watchers call without the GIL; a null function: nothing.
struct NativeFunction {
  using Type = void(uint64_t old_value, uint64_t new_value, void* context);
  Type* function = nullptr;
  void* context = nullptr;

  static NativeFunction At(uint64_t function, uint64_t context) {
    return {reinterpret_cast<Type*>(function), reinterpret_cast<void*>(context)};
  }
};

// A watcher as Python holds it.
class HostWatcher {
 public:
  // With the GIL. `callback(old, new)` runs on the engine's watcher thread; or `native` in its place, and `callback` is
  // kept for it. `given`: as of Watcher::Watch.
  static Result<std::unique_ptr<HostWatcher>> Watch(std::shared_ptr<HostEngine> engine, uint64_t initial,
                                                    const nanobind::object& callback, NativeFunction native,
                                                    std::shared_ptr<uint64_t> given = nullptr);
  ~HostWatcher();
  HostWatcher(const HostWatcher&) = delete;
  HostWatcher& operator=(const HostWatcher&) = delete;

  // Lives longer than the watcher, if somebody holds it.
  std::shared_ptr<uint64_t> word() const { return word_; }
  // The callback is not called any more. Idempotent, any thread.
  void Stop();
  // Without the GIL. False: the callback has not returned by then.
  bool WaitUntilReturned(Deadline deadline) const;

 private:
  HostWatcher() = default;

  std::shared_ptr<HostEngine> engine_;
  std::shared_ptr<PythonCallback> callback_;
  std::unique_ptr<Watcher> watcher_;
  std::shared_ptr<uint64_t> word_;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_HOST_WATCHER_H_
