#include "csrc/kernels/cuda/device_copies.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::testing {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr uint8_t kGuard = 0xa5;
// All copies of one kernel; tests are small.
constexpr int64_t kArenaBytes = int64_t{2} << 30;

void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// One for the program: allocating is slow.
uint8_t* Arena() {
  static uint8_t* const arena = [] {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, kArenaBytes));
    return static_cast<uint8_t*>(memory);
  }();
  return arena;
}

}  // namespace

DeviceCopies::DeviceCopies() { Reserve(0); }

int64_t DeviceCopies::Reserve(int64_t bytes) {
  const int64_t offset = bytes_;
  bytes_ = AlignUp(bytes_ + bytes, 256) + kGuardBytes;
  EXPECT_LE(bytes_, kArenaBytes) << "raise kArenaBytes";
  return offset;
}

void* DeviceCopies::AddBytes(void* array, int64_t bytes, bool constant) {
  if (array == nullptr) return nullptr;
  const int64_t offset = Reserve(bytes);
  copies_.push_back({static_cast<uint8_t*>(array), bytes, offset, constant});
  return Arena() + offset;
}

void* DeviceCopies::Scratch(int64_t bytes) { return Arena() + Reserve(bytes); }

void DeviceCopies::Upload() {
  image_.assign(bytes_, kGuard);
  for (const Copy& copy : copies_) std::memcpy(image_.data() + copy.offset, copy.host, copy.bytes);
  Check(cudaMemcpy(Arena(), image_.data(), bytes_, cudaMemcpyHostToDevice));
}

void DeviceCopies::Download() {
  Check(cudaStreamSynchronize(nullptr));
  std::vector<uint8_t> after(bytes_);
  Check(cudaMemcpy(after.data(), Arena(), bytes_, cudaMemcpyDeviceToHost));
  for (const Copy& copy : copies_) {
    const uint8_t* begin = after.data() + copy.offset;
    const int64_t guard_end = AlignUp(copy.offset + copy.bytes, 256) + kGuardBytes - copy.offset;
    EXPECT_EQ(std::memcmp(begin + copy.bytes, image_.data() + copy.offset + copy.bytes, guard_end - copy.bytes), 0)
        << "written behind an array of " << copy.bytes << " bytes";
    if (copy.constant) {
      EXPECT_EQ(std::memcmp(begin, copy.host, copy.bytes), 0) << "an input of " << copy.bytes << " bytes has changed";
    } else {
      std::memcpy(copy.host, begin, copy.bytes);
    }
  }
}

}  // namespace jax_fabric::kernels::testing
