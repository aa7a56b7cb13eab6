// From the small integers in a compiled program to the objects of this process. Attributes of a custom call must be
// equal in all processes, so they carry handles, never pointers; the device says which local object is meant.
#ifndef JAX_FABRIC_FFI_HANDLE_TABLE_H_
#define JAX_FABRIC_FFI_HANDLE_TABLE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/base/status.h"

namespace jax_fabric::ffi_layer {

// Of entries that say which device() they belong to. Never freed: handlers may look at them at any time.
template <typename Entry>
class HandleTable {
 public:
  // Of a process, for objects of every kind together.
  static constexpr int64_t kMaxHandles = 4096;

  // By one thread at a time. The pair (handle, device) is new.
  Status Add(int64_t handle, std::unique_ptr<Entry> entry) {
    if (handle < 0 || handle >= kMaxHandles) {
      return MakeError(ErrorCode::kResourceExhausted,
                       "handle {}: a process can make {} expert-parallel contexts and watchers", handle, kMaxHandles);
    }
    const auto* before = table_[handle].load(std::memory_order_relaxed);
    auto after = before == nullptr ? std::make_unique<List>() : std::make_unique<List>(*before);
    entries_.push_back(std::move(entry));
    after->push_back(entries_.back().get());
    // release, with the acquire in EntriesOf.
    table_[handle].store(after.get(), std::memory_order_release);
    versions_.push_back(std::move(after));
    return {};
  }

  // Lock-free. Null: no such handle, or the device is not one of its own here.
  Entry* Find(int64_t handle, int32_t device) const {
    for (Entry* entry : EntriesOf(handle)) {
      if (entry->device() == device) return entry;
    }
    return nullptr;
  }

  // Lock-free.
  const std::vector<Entry*>& EntriesOf(int64_t handle) const {
    static const List kNone;
    const List* entries =
        handle < 0 || handle >= kMaxHandles ? nullptr : table_[handle].load(std::memory_order_acquire);
    return entries == nullptr ? kNone : *entries;
  }

 private:
  using List = std::vector<Entry*>;

  // Replaced as a whole when an entry is added; old versions stay (readers may hold them).
  std::array<std::atomic<const List*>, kMaxHandles> table_{};
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::unique_ptr<const List>> versions_;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HANDLE_TABLE_H_
