// GDRCopy's library without its kernel module: what the host stores into a mapping, a thread copies to the memory that
// it stands for, word by word, to a GPU's by NVIDIA's driver (gpu_copies.h). It shows that the right words go to the
// right place, in time; that a processor's stores reach a GPU in order it does not.
#include "csrc/moe/cuda/gdrcopy/double/gdrapi_double.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engine/domains/connectx/double/gpu_copies.h"
#include "csrc/moe/cuda/gdrcopy/gdr_library.h"

namespace {

using jax_fabric::gdrcopy::Handle;

// A pinned buffer, and its mapping once there is one.
class Buffer {
 public:
  Buffer(uint64_t* memory, size_t bytes) : memory_(memory), bytes_(bytes), seen_(bytes / sizeof(uint64_t)) {}
  ~Buffer() { Unmap(); }

  void* Map() {
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    mapped_ = static_cast<uint64_t*>(mapped);
    thread_ = std::thread([this] {
      // What copies need is made now: later it might wait for a kernel that waits for them.
      const uint64_t zero = 0;
      if (jax_fabric::verbs_double::IsGpuMemory(memory_)) {
        jax_fabric::verbs_double::GpuCopy(memory_, &zero, sizeof(zero));
      }
      while (!stopping_.load(std::memory_order_relaxed)) {
        CopyChanges();
        std::this_thread::yield();
      }
    });
    return mapped;
  }
  bool Unmap() {
    if (mapped_ == nullptr) return false;
    stopping_.store(true, std::memory_order_relaxed);
    thread_.join();
    CopyChanges();
    munmap(mapped_, bytes_);
    mapped_ = nullptr;
    return true;
  }

 private:
  void CopyChanges() {
    for (size_t i = 0; i < seen_.size(); ++i) {
      // acquire: what was stored before the word is there when its copy is.
      const uint64_t word = std::atomic_ref(mapped_[i]).load(std::memory_order_acquire);
      if (word == seen_[i]) continue;
      seen_[i] = word;
      if (jax_fabric::verbs_double::IsGpuMemory(memory_ + i)) {
        jax_fabric::verbs_double::GpuCopy(memory_ + i, &word, sizeof(word));
      } else {
        std::atomic_ref(memory_[i]).store(word, std::memory_order_release);
      }
    }
  }

  uint64_t* const memory_;
  const size_t bytes_;
  std::vector<uint64_t> seen_;  // all zeros, as memory is given
  uint64_t* mapped_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

struct Driver {
  std::mutex mutex;
  std::map<unsigned long, std::unique_ptr<Buffer>> buffers;
  unsigned long last = 0;
  int mapped = 0;
  std::string failing;

  bool Fails(const char* call) {
    if (failing != call) return false;
    failing.clear();
    return true;
  }
};

Driver& TheDriver() {
  static Driver driver;
  return driver;
}

}  // namespace

extern "C" {

int jf_gdr_double_open() {
  const std::lock_guard lock(TheDriver().mutex);
  return static_cast<int>(TheDriver().buffers.size()) + TheDriver().mapped;
}

void jf_gdr_double_fail(const char* call) {
  const std::lock_guard lock(TheDriver().mutex);
  TheDriver().failing = call;
}

void* gdr_open() {
  const std::lock_guard lock(TheDriver().mutex);
  return TheDriver().Fails("gdr_open") ? nullptr : &TheDriver();
}

int gdr_pin_buffer(void*, unsigned long address, size_t bytes, uint64_t, uint32_t, Handle* handle) {
  const std::lock_guard lock(TheDriver().mutex);
  if (TheDriver().Fails("gdr_pin_buffer")) return EPERM;
  handle->value = ++TheDriver().last;
  TheDriver().buffers[handle->value] = std::make_unique<Buffer>(reinterpret_cast<uint64_t*>(address), bytes);
  return 0;
}

int gdr_unpin_buffer(void*, Handle handle) {
  const std::lock_guard lock(TheDriver().mutex);
  return TheDriver().buffers.erase(handle.value) == 1 ? 0 : EINVAL;
}

int gdr_map(void*, Handle handle, void** host, size_t) {
  const std::lock_guard lock(TheDriver().mutex);
  const auto found = TheDriver().buffers.find(handle.value);
  if (found == TheDriver().buffers.end() || TheDriver().Fails("gdr_map")) return EAGAIN;
  *host = found->second->Map();
  if (*host == nullptr) return ENOMEM;
  ++TheDriver().mapped;
  return 0;
}

int gdr_unmap(void*, Handle handle, void*, size_t) {
  const std::lock_guard lock(TheDriver().mutex);
  const auto found = TheDriver().buffers.find(handle.value);
  if (found == TheDriver().buffers.end() || !found->second->Unmap()) return EINVAL;
  --TheDriver().mapped;
  return 0;
}
}
