#include "csrc/moe/cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/moe/cuda/cuda_status.h"
#include "csrc/moe/cuda/device_guard.h"

namespace jax_fabric::moe {
namespace {

// Smaller allocations share a page with others, and CUDA IPC shares pages.
constexpr int64_t kPageBytes = 2 << 20;

struct Exported {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t device = 0;
  cudaIpcMemHandle_t handle = {};
};

Result<Exported> Parse(ByteView bytes) {
  ByteReader reader(bytes);
  Exported exported;
  JF_ASSIGN_OR_RETURN(exported.address, reader.U64("address"));
  JF_ASSIGN_OR_RETURN(exported.bytes, reader.U64("length"));
  JF_ASSIGN_OR_RETURN(exported.device, reader.U32("device"));
  JF_ASSIGN_OR_RETURN(const ByteView handle, reader.ByteString(sizeof(exported.handle), "memory handle"));
  if (handle.size() != sizeof(exported.handle)) {
    return MakeError(ErrorCode::kInvalidArgument, "memory handle: {} bytes, and not {}", handle.size(),
                     sizeof(exported.handle));
  }
  std::memcpy(&exported.handle, handle.data(), sizeof(exported.handle));
  return exported;
}

}  // namespace

Result<DeviceMemory> DeviceMemory::Allocate(int device, int64_t bytes) {
  const DeviceGuard guard(device);
  JF_RETURN_IF_ERROR(FromCuda(guard.error(), "cudaSetDevice"));
  DeviceMemory memory;
  memory.device_ = device;
  memory.bytes_ = kernels::AlignUp(bytes, kPageBytes);
  void* data = nullptr;
  if (const Status allocated = FromCuda(cudaMalloc(&data, memory.bytes_), "cudaMalloc"); !allocated) {
    return MakeError(allocated.error().code,
                     "{} bytes on GPU {}: {}. JAX takes three quarters of a GPU's memory for itself unless "
                     "XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise",
                     memory.bytes_, device, allocated.error().message);
  }
  memory.data_ = static_cast<std::byte*>(data);
  JF_RETURN_IF_ERROR(memory.Clear());
  return memory;
}

Status DeviceMemory::Clear() const {
  const DeviceGuard guard(device_);
  JF_RETURN_IF_ERROR(FromCuda(cudaMemset(data_, 0, bytes_), "cudaMemset"));
  // The stream of the memset is not the kernels'.
  return FromCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  (void)cudaFree(data_);
}

Result<Bytes> DeviceMemory::Export() const {
  const DeviceGuard guard(device_);
  Exported exported{.address = reinterpret_cast<uint64_t>(data_),
                    .bytes = static_cast<uint64_t>(bytes_),
                    .device = static_cast<uint32_t>(device_)};
  JF_RETURN_IF_ERROR(FromCuda(cudaIpcGetMemHandle(&exported.handle, data_), "cudaIpcGetMemHandle"));
  ByteWriter writer;
  writer.U64(exported.address);
  writer.U64(exported.bytes);
  writer.U32(exported.device);
  writer.ByteString(ByteView(reinterpret_cast<const std::byte*>(&exported.handle), sizeof(exported.handle)));
  const auto view = writer.bytes();
  return Bytes(view.begin(), view.end());
}

Result<PeerDeviceMemory> PeerDeviceMemory::Open(int device, ByteView exported_bytes, bool same_process) {
  JF_ASSIGN_OR_RETURN(const Exported exported, Parse(exported_bytes));
  const DeviceGuard guard(device);
  JF_RETURN_IF_ERROR(FromCuda(guard.error(), "cudaSetDevice"));
  PeerDeviceMemory memory;
  memory.device_ = device;
  memory.bytes_ = static_cast<int64_t>(exported.bytes);
  if (!same_process) {
    void* data = nullptr;
    const Status opened =
        FromCuda(cudaIpcOpenMemHandle(&data, exported.handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    if (!opened) {
      return MakeError(opened.error().code,
                       "GPU {} of this process cannot reach the memory of GPU {} of another one: {}. force_staged=True "
                       "goes through host memory instead",
                       device, exported.device, opened.error().message);
    }
    memory.data_ = static_cast<std::byte*>(data);
    memory.opened_ = true;
    return memory;
  }
  memory.data_ = reinterpret_cast<std::byte*>(exported.address);
  if (static_cast<int>(exported.device) == device) return memory;
  const cudaError_t error = cudaDeviceEnablePeerAccess(static_cast<int>(exported.device), 0);
  if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "GPU {} cannot reach the memory of GPU {}: {}. force_staged=True goes through host memory instead",
                     device, exported.device, cudaGetErrorString(error));
  }
  (void)cudaGetLastError();
  return memory;
}

PeerDeviceMemory::PeerDeviceMemory(PeerDeviceMemory&& other) noexcept { *this = std::move(other); }

PeerDeviceMemory& PeerDeviceMemory::operator=(PeerDeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(opened_, other.opened_);
  return *this;
}

PeerDeviceMemory::~PeerDeviceMemory() {
  if (!opened_) return;
  const DeviceGuard guard(device_);
  (void)cudaIpcCloseMemHandle(data_);
}

}  // namespace jax_fabric::moe
