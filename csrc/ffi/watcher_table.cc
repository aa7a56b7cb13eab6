#include "csrc/ffi/watcher_table.h"

namespace jax_fabric::ffi_layer {

WatcherTable& WatcherTable::Get() {
  // Leaked on purpose: handlers may run until the process is gone.
  static auto* table = new WatcherTable;
  return *table;
}

Status WatcherTable::Add(int64_t handle, int32_t device, std::shared_ptr<uint64_t> word) {
  const std::lock_guard lock(mutex_);
  if (words_.Find(handle, device) != nullptr) {
    return MakeError(ErrorCode::kAlreadyExists, "watcher handle {} has a word on device {} already", handle, device);
  }
  return words_.Add(handle, std::make_unique<DeviceWord>(device, std::move(word)));
}

Result<uint64_t*> WatcherTable::Find(int64_t handle, int32_t device) const {
  const DeviceWord* word = words_.Find(handle, device);
  if (word != nullptr) return word->word();
  return MakeError(ErrorCode::kNotFound,
                   "watcher {} has no word for device {}: bump it on devices of the mesh of its Fabric", handle,
                   device);
}

}  // namespace jax_fabric::ffi_layer
