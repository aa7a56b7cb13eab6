// Host memory that a device has mapped.
#ifndef JAX_FABRIC_MOE_CUDA_MAPPED_MEMORY_H_
#define JAX_FABRIC_MOE_CUDA_MAPPED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "csrc/base/status.h"

namespace jax_fabric::moe {

class MappedMemory {
 public:
  MappedMemory() = default;
  // Zeroed, of its own.
  static Result<MappedMemory> Allocate(int device, int64_t bytes);
  // Of memory that is there, and outlives this.
  static Result<MappedMemory> Register(int device, std::span<std::byte> memory);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  // May wait for kernels that run on the device.
  ~MappedMemory();

  std::byte* host() const { return host_; }
  std::byte* device() const { return on_device_; }
  int64_t bytes() const { return bytes_; }

 private:
  int device_ = 0;
  std::byte* host_ = nullptr;
  std::byte* on_device_ = nullptr;
  int64_t bytes_ = 0;
  bool registered_ = false;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_MAPPED_MEMORY_H_
