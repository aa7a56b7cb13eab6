#include "csrc/engine/domains/nic/cuda_memory.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>

namespace jax_fabric::nic {
namespace {

using DevicePointer = unsigned long long;  // CUdeviceptr
using Device = int;                        // CUdevice
using Context = void*;                     // CUcontext

constexpr int kDeviceOrdinal = 9;    // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kDmaBufSupport = 124;  // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
constexpr int kDmaBufFd = 1;         // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

// The driver's own header is not needed for a few functions. Those of some names are newer than the names: the driver
// exports each version under a name of its own.
struct Driver {
  int (*pointer_get_attribute)(void*, int, DevicePointer) = nullptr;
  int (*device_get)(Device*, int) = nullptr;
  int (*device_get_attribute)(int*, int, Device) = nullptr;
  int (*primary_context_retain)(Context*, Device) = nullptr;
  int (*primary_context_release)(Device) = nullptr;
  int (*context_push)(Context) = nullptr;
  int (*context_pop)(Context*) = nullptr;
  int (*get_error_name)(int, const char**) = nullptr;
  // CUDA 11.7 and newer; else null.
  int (*export_range)(void*, DevicePointer, size_t, int, unsigned long long) = nullptr;

  std::string Words(int error) const {
    const char* name = nullptr;
    if (get_error_name(error, &name) == 0 && name != nullptr) return name;
    return fmt::format("CUDA error {}", error);
  }
};

template <typename Function>
bool LookUp(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

Result<const Driver*> LoadDriver() {
  static Driver driver;
  static const bool loaded = [] {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    LookUp(handle, "cuMemGetHandleForAddressRange", driver.export_range);
    return LookUp(handle, "cuPointerGetAttribute", driver.pointer_get_attribute) &&
           LookUp(handle, "cuDeviceGet", driver.device_get) &&
           LookUp(handle, "cuDeviceGetAttribute", driver.device_get_attribute) &&
           LookUp(handle, "cuDevicePrimaryCtxRetain", driver.primary_context_retain) &&
           LookUp(handle, "cuDevicePrimaryCtxRelease_v2", driver.primary_context_release) &&
           LookUp(handle, "cuCtxPushCurrent_v2", driver.context_push) &&
           LookUp(handle, "cuCtxPopCurrent_v2", driver.context_pop) &&
           LookUp(handle, "cuGetErrorName", driver.get_error_name);
  }();
  if (loaded) return &driver;
  return MakeError(ErrorCode::kNotFound, "libcuda.so.1 cannot be opened: device memory needs NVIDIA's driver");
}

// Makes a device's context current in this thread, which may have none.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, Device device) : driver_(driver), device_(device) {
    Context context = nullptr;
    error_ = driver.primary_context_retain(&context, device);
    if (error_ != 0) return;
    retained_ = true;
    error_ = driver.context_push(context);
    pushed_ = error_ == 0;
  }
  ~CurrentContext() {
    Context context = nullptr;
    if (pushed_) driver_.context_pop(&context);
    if (retained_) driver_.primary_context_release(device_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  int error() const { return error_; }

 private:
  const Driver& driver_;
  const Device device_;
  int error_ = 0;
  bool retained_ = false;
  bool pushed_ = false;
};

}  // namespace

Result<int> CudaDeviceOf(const void* address) {
  JF_ASSIGN_OR_RETURN(const Driver* driver, LoadDriver());
  int ordinal = -1;
  const int error = driver->pointer_get_attribute(&ordinal, kDeviceOrdinal, reinterpret_cast<DevicePointer>(address));
  if (error == 0) return ordinal;
  return MakeError(ErrorCode::kInvalidArgument, "{} is not memory of a CUDA device ({})", address,
                   driver->Words(error));
}

Result<DmaBuf> ExportCudaMemory(const void* address, uint64_t length) {
  JF_ASSIGN_OR_RETURN(const int ordinal, CudaDeviceOf(address));
  JF_ASSIGN_OR_RETURN(const Driver* driver, LoadDriver());
  Device device = 0;
  int supported = 0;
  if (driver->device_get(&device, ordinal) != 0 ||
      driver->device_get_attribute(&supported, kDmaBufSupport, device) != 0 || supported == 0 ||
      driver->export_range == nullptr) {
    return MakeError(ErrorCode::kUnimplemented,
                     "GPU {} exports no memory as dma-buf: that needs NVIDIA's open kernel modules of CUDA 11.7 or "
                     "newer",
                     ordinal);
  }
  // Only whole pages of the host are exported; allocations are made of them.
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<DevicePointer>(address);
  const uint64_t first = begin / page * page;
  const uint64_t end = (begin + length + page - 1) / page * page;
  const CurrentContext current(*driver, device);
  int fd = -1;
  int error = current.error();
  if (error == 0) error = driver->export_range(&fd, first, end - first, kDmaBufFd, 0);
  if (error == 0) return DmaBuf{UniqueFd(fd), begin - first};
  return MakeError(ErrorCode::kInvalidArgument, "{} bytes at {} of GPU {} cannot be exported as dma-buf: {}", length,
                   address, ordinal, driver->Words(error));
}

}  // namespace jax_fabric::nic
