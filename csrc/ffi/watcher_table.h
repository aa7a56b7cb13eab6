// The words that programs raise (jf_bump), for good: XLA may replay a program that it has recorded after the watcher
// was closed, and stores into the word then, which nobody looks at any more.
#ifndef JAX_FABRIC_FFI_WATCHER_TABLE_H_
#define JAX_FABRIC_FFI_WATCHER_TABLE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/ffi/handle_table.h"

namespace jax_fabric::ffi_layer {

class WatcherTable {
 public:
  static WatcherTable& Get();

  // The word of a watcher on one device, which can store into it. The pair (handle, device) is new.
  Status Add(int64_t handle, int32_t device, std::shared_ptr<uint64_t> word);
  // Lock-free. An error: no such handle, or the device has no word of it here.
  Result<uint64_t*> Find(int64_t handle, int32_t device) const;

 private:
  class DeviceWord {
   public:
    DeviceWord(int32_t device, std::shared_ptr<uint64_t> word) : device_(device), word_(std::move(word)) {}
    int32_t device() const { return device_; }
    uint64_t* word() const { return word_.get(); }

   private:
    const int32_t device_;
    const std::shared_ptr<uint64_t> word_;
  };

  std::mutex mutex_;  // of writers
  HandleTable<DeviceWord> words_;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_WATCHER_TABLE_H_
