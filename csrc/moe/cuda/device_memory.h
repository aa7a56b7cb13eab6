// A device's memory that other ranks' kernels write into: allocated here, or another rank's.
#ifndef JAX_FABRIC_MOE_CUDA_DEVICE_MEMORY_H_
#define JAX_FABRIC_MOE_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::moe {

// Zeroed memory of a device. Plain cudaMalloc memory, which CUDA IPC can share.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  static Result<DeviceMemory> Allocate(int device, int64_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  // May wait for kernels that run on the device.
  ~DeviceMemory();

  // Zeroes it once more.
  Status Clear() const;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // For peers, as bytes: how to reach it.
  Result<Bytes> Export() const;

 private:
  int device_ = 0;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The same memory for kernels on `device` of this process.
class PeerDeviceMemory {
 public:
  PeerDeviceMemory() = default;
  // `exported` by a rank of this machine, of this process if `same_process`. Errors say which device cannot reach
  // which.
  static Result<PeerDeviceMemory> Open(int device, ByteView exported, bool same_process);
  PeerDeviceMemory(PeerDeviceMemory&& other) noexcept;
  PeerDeviceMemory& operator=(PeerDeviceMemory&& other) noexcept;
  ~PeerDeviceMemory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  int device_ = 0;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool opened_ = false;  // by CUDA IPC: to be closed
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_DEVICE_MEMORY_H_
