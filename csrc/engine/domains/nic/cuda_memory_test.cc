// On a GPU (scripts/gpu_check.sh): its memory as NICs are given it.
#include "csrc/engine/domains/nic/cuda_memory.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace jax_fabric::nic {
namespace {

constexpr uint64_t kBytes = 8 << 20;

class CudaMemory : public testing::Test {
 protected:
  void SetUp() override {
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
    memory_ = static_cast<std::byte*>(memory);
  }
  void TearDown() override { EXPECT_EQ(cudaFree(memory_), cudaSuccess); }

  std::byte* memory_ = nullptr;
};

TEST_F(CudaMemory, DeviceIsFound) {
  EXPECT_EQ(CudaDeviceOf(memory_).value(), 0);
  EXPECT_EQ(CudaDeviceOf(memory_ + kBytes - 1).value(), 0);
  const int here = 0;
  const auto none = CudaDeviceOf(&here);
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("is not memory of a CUDA device"), std::string::npos) << none.error().message;
}

// Whole, and parts that begin and end within pages. Where the driver exports nothing it says so.
TEST_F(CudaMemory, IsExportedAsDmaBuf) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{4096}, uint64_t{100}, kBytes - 10}) {
    for (const uint64_t length : {uint64_t{1}, uint64_t{10}, uint64_t{65536}, kBytes}) {
      if (first + length > kBytes) continue;
      const auto exported = ExportCudaMemory(memory_ + first, length);
      if (!exported.has_value()) {
        EXPECT_EQ(exported.error().code, ErrorCode::kUnimplemented) << exported.error().message;
        std::printf("no dma-buf here: %s\n", exported.error().message.c_str());
        return;
      }
      ASSERT_TRUE(exported->fd.valid());
      const off_t size = lseek(exported->fd.get(), 0, SEEK_END);
      EXPECT_GE(static_cast<uint64_t>(size), exported->offset + length) << first << " " << length;
      if (first == 0 && length == kBytes) std::printf("a dma-buf of %lld bytes\n", static_cast<long long>(size));
    }
  }
}

TEST_F(CudaMemory, BeyondItsEndIsRefused) {
  const auto exported = ExportCudaMemory(memory_ + kBytes - 10, uint64_t{1} << 40);
  ASSERT_FALSE(exported.has_value());
  EXPECT_FALSE(exported.error().message.empty());
  std::printf("%s\n", exported.error().message.c_str());
}

}  // namespace
}  // namespace jax_fabric::nic
