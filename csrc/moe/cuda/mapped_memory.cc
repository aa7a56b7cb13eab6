#include "csrc/moe/cuda/mapped_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "csrc/moe/cuda/cuda_status.h"
#include "csrc/moe/cuda/device_guard.h"

namespace jax_fabric::moe {
namespace {

Result<std::byte*> OnDevice(std::byte* host) {
  void* device = nullptr;
  JF_RETURN_IF_ERROR(FromCuda(cudaHostGetDevicePointer(&device, host, 0), "cudaHostGetDevicePointer"));
  return static_cast<std::byte*>(device);
}

}  // namespace

Result<MappedMemory> MappedMemory::Allocate(int device, int64_t bytes) {
  const DeviceGuard guard(device);
  JF_RETURN_IF_ERROR(FromCuda(guard.error(), "cudaSetDevice"));
  void* host = nullptr;
  JF_RETURN_IF_ERROR(FromCuda(cudaHostAlloc(&host, bytes, cudaHostAllocMapped), "cudaHostAlloc"));
  MappedMemory memory;
  memory.device_ = device;
  memory.host_ = static_cast<std::byte*>(host);
  memory.bytes_ = bytes;
  std::memset(host, 0, bytes);
  JF_ASSIGN_OR_RETURN(memory.on_device_, OnDevice(memory.host_));
  return memory;
}

Result<MappedMemory> MappedMemory::Register(int device, std::span<std::byte> bytes) {
  const DeviceGuard guard(device);
  JF_RETURN_IF_ERROR(FromCuda(guard.error(), "cudaSetDevice"));
  JF_RETURN_IF_ERROR(
      FromCuda(cudaHostRegister(bytes.data(), bytes.size(), cudaHostRegisterMapped), "cudaHostRegister"));
  MappedMemory memory;
  memory.device_ = device;
  memory.host_ = bytes.data();
  memory.bytes_ = static_cast<int64_t>(bytes.size());
  memory.registered_ = true;
  JF_ASSIGN_OR_RETURN(memory.on_device_, OnDevice(memory.host_));
  return memory;
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept { *this = std::move(other); }

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(host_, other.host_);
  std::swap(on_device_, other.on_device_);
  std::swap(bytes_, other.bytes_);
  std::swap(registered_, other.registered_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (host_ == nullptr) return;
  const DeviceGuard guard(device_);
  if (registered_) {
    (void)cudaHostUnregister(host_);
  } else {
    (void)cudaFreeHost(host_);
  }
}

}  // namespace jax_fabric::moe
