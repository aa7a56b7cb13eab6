#include "csrc/engine/domains/efa/device_memory.h"

#include <dlfcn.h>

#include <cstdint>

namespace jax_fabric::efa {

Status DescribeDeviceMemory(const void* address, fi_mr_attr& attributes) {
  // The driver's own header is not needed for one function: CUresult cuPointerGetAttribute(void*, int, CUdeviceptr).
  using PointerGetAttribute = int (*)(void*, int, unsigned long long);
  constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
  static const auto get = [] {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return handle == nullptr ? nullptr : reinterpret_cast<PointerGetAttribute>(dlsym(handle, "cuPointerGetAttribute"));
  }();
  if (get == nullptr) {
    return MakeError(ErrorCode::kNotFound, "libcuda.so.1 cannot be opened: device memory needs NVIDIA's driver");
  }
  int ordinal = -1;
  if (const int error = get(&ordinal, kDeviceOrdinal, reinterpret_cast<uintptr_t>(address)); error != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "{} is not memory of a CUDA device (CUDA error {})", address, error);
  }
  attributes.iface = FI_HMEM_CUDA;
  attributes.device.cuda = ordinal;
  return {};
}

}  // namespace jax_fabric::efa
