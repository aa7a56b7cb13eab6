// Over the double of GDRCopy's library, on memory of the host in the place of a GPU's.
#include "csrc/moe/cuda/gdrcopy/gdr_mapping.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "csrc/moe/cuda/gdrcopy/double/gdrapi_double.h"
#include "csrc/moe/host_line.h"
#include "gtest/gtest.h"

namespace jax_fabric::gdrcopy {
namespace {

constexpr const char* kDouble = "csrc/moe/cuda/gdrcopy/double/libgdrapi_double.so";

class GdrMappingTest : public ::testing::Test {
 protected:
  GdrMappingTest() {
    void* handle = dlopen(kDouble, RTLD_NOW | RTLD_LOCAL);
    open_ = reinterpret_cast<decltype(&jf_gdr_double_open)>(dlsym(handle, "jf_gdr_double_open"));
    fail_ = reinterpret_cast<decltype(&jf_gdr_double_fail)>(dlsym(handle, "jf_gdr_double_fail"));
    memory_ = static_cast<std::byte*>(std::aligned_alloc(GdrMapping::kPageBytes, 2 * GdrMapping::kPageBytes));
    std::fill_n(memory_, 2 * GdrMapping::kPageBytes, std::byte{0});
  }
  ~GdrMappingTest() override {
    EXPECT_EQ(open_(), 0) << "all has been given back";
    std::free(memory_);
  }

  static const GdrLibrary& Library() { return *GdrLibrary::Load(kDouble).value(); }

  decltype(&jf_gdr_double_open) open_;
  decltype(&jf_gdr_double_fail) fail_;
  std::byte* memory_;
};

// A kernel's view: the line in memory_, which only the mapping's stores change.
TEST_F(GdrMappingTest, WhatTheHostSaysIsInTheDevicesMemory) {
  GdrMapping mapping = GdrMapping::Map(Library(), memory_, GdrMapping::kPageBytes).value();
  ASSERT_NE(mapping.host(), memory_);
  auto* seen = reinterpret_cast<moe::HostLine::Words*>(memory_) + 1;
  const moe::HostLine line(reinterpret_cast<moe::HostLine::Words*>(mapping.host()) + 1, /*on_device=*/true);
  int64_t message = 0;
  std::thread kernel([&] {
    for (int64_t sequence = 1; sequence <= 200; ++sequence) {
      // acquire, with the release of SetDone
      while (std::atomic_ref(seen->done).load(std::memory_order_acquire) < sequence) std::this_thread::yield();
      EXPECT_GE(std::atomic_ref(message).load(std::memory_order_relaxed), sequence);
    }
    while (std::atomic_ref(seen->stop).load(std::memory_order_relaxed) == 0) std::this_thread::yield();
  });
  for (int64_t sequence = 1; sequence <= 200; ++sequence) {
    std::atomic_ref(message).store(sequence, std::memory_order_relaxed);
    line.SetDone(sequence);
    if (sequence % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(std::atomic_ref(seen->stop).load(std::memory_order_relaxed), 0u);
  line.SetStop();
  kernel.join();
}

TEST_F(GdrMappingTest, MovesAndIsGivenBackOnce) {
  GdrMapping mapping = GdrMapping::Map(Library(), memory_, 2 * GdrMapping::kPageBytes).value();
  EXPECT_EQ(open_(), 2) << "pinned and mapped";
  std::byte* const host = mapping.host();
  GdrMapping other(std::move(mapping));
  EXPECT_EQ(other.host(), host);
  mapping = GdrMapping();
  EXPECT_EQ(open_(), 2);
  other = GdrMapping();
}

TEST_F(GdrMappingTest, WholePagesOnly) {
  for (const auto& [offset, bytes] :
       {std::pair<int64_t, int64_t>{256, GdrMapping::kPageBytes}, {0, GdrMapping::kPageBytes - 64}, {0, 0}}) {
    const auto mapping = GdrMapping::Map(Library(), memory_ + offset, bytes);
    ASSERT_FALSE(mapping.has_value());
    EXPECT_EQ(mapping.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(mapping.error().message.find("65536"), std::string::npos) << mapping.error().message;
  }
}

TEST_F(GdrMappingTest, WhatTheDriverRefusesIsAnError) {
  for (const char* call : {"gdr_pin_buffer", "gdr_map"}) {
    fail_(call);
    const auto mapping = GdrMapping::Map(Library(), memory_, GdrMapping::kPageBytes);
    ASSERT_FALSE(mapping.has_value()) << call;
    EXPECT_EQ(mapping.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(mapping.error().message.find(call + 4, 0, 3), std::string::npos) << mapping.error().message;
    EXPECT_EQ(open_(), 0) << call;
  }
}

TEST(GdrLibraryTest, SaysWhatIsMissing) {
  const auto none = GdrLibrary::Load("libno_such_gdrapi.so");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_NE(none.error().message.find("libno_such_gdrapi.so"), std::string::npos);
  const auto other = GdrLibrary::Load("libc.so.6");
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(other.error().message.find("gdr_"), std::string::npos) << other.error().message;
}

}  // namespace
}  // namespace jax_fabric::gdrcopy
