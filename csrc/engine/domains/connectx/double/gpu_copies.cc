#include "csrc/engine/domains/connectx/double/gpu_copies.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>

namespace jax_fabric::verbs_double {
namespace {

using DevicePointer = unsigned long long;  // CUdeviceptr

constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kMemoryType = 2;     // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kOnDevice = 2;  // CU_MEMORYTYPE_DEVICE
constexpr unsigned kNonBlocking = 1;
constexpr size_t kPinnedBytes = 256 << 10;

// Their names with the versions that the driver exports them by.
struct Driver {
  int (*get_attribute)(void*, int, DevicePointer) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  int (*priorities)(int*, int*) = nullptr;
  int (*create_stream)(void**, unsigned, int) = nullptr;
  int (*allocate_pinned)(void**, size_t, unsigned) = nullptr;
  int (*copy)(DevicePointer, DevicePointer, size_t, void*) = nullptr;
  int (*synchronize)(void*) = nullptr;

  bool Load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto find = [library](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    return library != nullptr && find("cuPointerGetAttribute", get_attribute) &&
           find("cuDevicePrimaryCtxRetain", retain) && find("cuCtxSetCurrent", set_current) &&
           find("cuCtxGetStreamPriorityRange", priorities) && find("cuStreamCreateWithPriority", create_stream) &&
           find("cuMemHostAlloc", allocate_pinned) && find("cuMemcpyAsync", copy) &&
           find("cuStreamSynchronize", synchronize);
  }
};

const Driver* GetDriver() {
  static Driver driver;
  static const bool loaded = driver.Load();
  return loaded ? &driver : nullptr;
}

// Of this thread, on the device of the first memory that it copies: copies between pinned memory and a GPU's are made
// by the copy engine, and a stream of the highest priority has a hardware queue of its own, where no kernel is in
// front.
class CopyStream {
 public:
  CopyStream(const Driver& driver, DevicePointer memory) : driver_(driver) {
    int device = 0, lowest = 0, highest = 0;
    void* context = nullptr;
    ok_ = driver.get_attribute(&device, kDeviceOrdinal, memory) == 0 && driver.retain(&context, device) == 0 &&
          driver.set_current(context) == 0 && driver.priorities(&lowest, &highest) == 0 &&
          driver.create_stream(&stream_, kNonBlocking, highest) == 0 &&
          driver.allocate_pinned(&pinned_, kPinnedBytes, 0) == 0;
  }

  bool Copy(std::byte* to, const std::byte* from, size_t bytes, bool to_gpu) {
    for (size_t done = 0; ok_ && done < bytes; done += kPinnedBytes) {
      const size_t part = std::min(kPinnedBytes, bytes - done);
      if (to_gpu) std::memcpy(pinned_, from + done, part);
      const void* source = to_gpu ? pinned_ : from + done;
      void* target = to_gpu ? to + done : pinned_;
      ok_ = driver_.copy(reinterpret_cast<DevicePointer>(target), reinterpret_cast<DevicePointer>(source), part,
                         stream_) == 0 &&
            driver_.synchronize(stream_) == 0;
      if (!to_gpu) std::memcpy(to + done, pinned_, part);
    }
    return ok_;
  }

 private:
  const Driver& driver_;
  void* stream_ = nullptr;
  void* pinned_ = nullptr;
  bool ok_ = false;
};

}  // namespace

bool IsGpuMemory(const void* address) {
  const Driver* driver = GetDriver();
  unsigned type = 0;
  return driver != nullptr &&
         driver->get_attribute(&type, kMemoryType, reinterpret_cast<DevicePointer>(address)) == 0 && type == kOnDevice;
}

bool GpuCopy(void* to, const void* from, size_t bytes) {
  const Driver* driver = GetDriver();
  if (driver == nullptr) return false;
  const bool to_gpu = IsGpuMemory(to);
  thread_local CopyStream stream(*driver, reinterpret_cast<DevicePointer>(to_gpu ? to : from));
  if (stream.Copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, to_gpu)) return true;
  std::fprintf(stderr, "verbs double: %zu bytes could not be copied to or from a GPU\n", bytes);
  return false;
}

}  // namespace jax_fabric::verbs_double
