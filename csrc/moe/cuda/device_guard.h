#ifndef JAX_FABRIC_MOE_CUDA_DEVICE_GUARD_H_
#define JAX_FABRIC_MOE_CUDA_DEVICE_GUARD_H_

#include <cuda_runtime_api.h>

namespace jax_fabric::moe {

// Makes a device the thread's current one, for as long as this lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    has_former_ = cudaGetDevice(&former_) == cudaSuccess;
    error_ = cudaSetDevice(device);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (has_former_) (void)cudaSetDevice(former_);
  }
  cudaError_t error() const { return error_; }

 private:
  int former_ = 0;
  bool has_former_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_DEVICE_GUARD_H_
