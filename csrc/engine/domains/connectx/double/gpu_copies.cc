#include "csrc/engine/domains/connectx/double/gpu_copies.h"

#include <dlfcn.h>

#include <cstdio>
#include <type_traits>

namespace jax_fabric::verbs_double {
namespace {

using DevicePointer = unsigned long long;  // CUdeviceptr

constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kMemoryType = 2;     // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kOnDevice = 2;  // CU_MEMORYTYPE_DEVICE
constexpr unsigned kNonBlocking = 1;

// Their names with the versions that the driver exports them by.
struct Driver {
  int (*get_attribute)(void*, int, DevicePointer) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  int (*create_stream)(void**, unsigned) = nullptr;
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
           find("cuStreamCreate", create_stream) && find("cuMemcpyAsync", copy) &&
           find("cuStreamSynchronize", synchronize);
  }
};

const Driver* GetDriver() {
  static Driver driver;
  static const bool loaded = driver.Load();
  return loaded ? &driver : nullptr;
}

// Of this thread, on the device of the first memory that it copies.
void* Stream(const Driver& driver, DevicePointer memory) {
  thread_local void* stream = nullptr;
  if (stream != nullptr) return stream;
  int device = 0;
  void* context = nullptr;
  if (driver.get_attribute(&device, kDeviceOrdinal, memory) != 0 || driver.retain(&context, device) != 0 ||
      driver.set_current(context) != 0 || driver.create_stream(&stream, kNonBlocking) != 0) {
    stream = nullptr;
  }
  return stream;
}

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
  void* stream = Stream(*driver, reinterpret_cast<DevicePointer>(IsGpuMemory(to) ? to : from));
  const bool copied =
      stream != nullptr &&
      driver->copy(reinterpret_cast<DevicePointer>(to), reinterpret_cast<DevicePointer>(from), bytes, stream) == 0 &&
      driver->synchronize(stream) == 0;
  if (!copied) std::fprintf(stderr, "verbs double: %zu bytes could not be copied to or from a GPU\n", bytes);
  return copied;
}

}  // namespace jax_fabric::verbs_double
