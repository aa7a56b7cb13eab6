#include "csrc/moe/failure_notice.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace jax_fabric::moe {
namespace {

constexpr size_t kWords = FailureNotice::kBytes / 8;

FailureNotice Example() { return {.origin = 63, .code = ErrorCode::kFailedPrecondition, .reason = "rank 63 gave up"}; }

TEST(FailureNotice, MemoryThatNobodyWroteHasNone) {
  for (const int filling : {0x00, 0xff, 0x55}) {
    std::vector<uint64_t> memory(kWords);
    std::memset(memory.data(), filling, FailureNotice::kBytes);
    EXPECT_FALSE(FailureNotice::ReadFrom(memory.data()).has_value()) << filling;
  }
}

TEST(FailureNotice, ReadsWhatWasWritten) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::kDataLoss); ++code) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{FailureNotice::kMaxReasonBytes}}) {
      std::vector<uint64_t> memory(kWords + 2, 0x5555);
      const FailureNotice notice{code, static_cast<ErrorCode>(code), std::string(bytes, 'x')};
      notice.WriteTo(memory.data() + 1);
      const auto read = FailureNotice::ReadFrom(memory.data() + 1);
      ASSERT_TRUE(read.has_value());
      EXPECT_EQ(read->origin, notice.origin);
      EXPECT_EQ(read->code, notice.code);
      EXPECT_EQ(read->reason, notice.reason);
      EXPECT_EQ(memory.front(), 0x5555u);
      EXPECT_EQ(memory.back(), 0x5555u);
    }
  }
}

// Cut between two characters of UTF-8.
TEST(FailureNotice, LongReasonsAreCut) {
  for (int shift = 0; shift < 4; ++shift) {
    std::string reason(shift, 'x');
    while (reason.size() < 2 * FailureNotice::kMaxReasonBytes) reason += "\u20ac";
    std::vector<uint64_t> memory(kWords);
    FailureNotice{0, ErrorCode::kInternal, reason}.WriteTo(memory.data());
    const auto read = FailureNotice::ReadFrom(memory.data());
    ASSERT_TRUE(read.has_value());
    EXPECT_GT(read->reason.size(), FailureNotice::kMaxReasonBytes - 3);
    EXPECT_EQ((read->reason.size() - shift) % 3, 0);
    EXPECT_EQ(reason.substr(0, read->reason.size()), read->reason);
  }
}

// A NIC may write the bytes in any order.
TEST(FailureNotice, HalfWrittenOnesAreRefused) {
  std::vector<uint64_t> whole(kWords);
  Example().WriteTo(whole.data());
  std::mt19937_64 random(1);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<uint64_t> memory(kWords);
    bool complete = true;
    for (size_t i = 0; i < kWords; ++i) {
      if (random() % 2 == 0) memory[i] = whole[i];
      complete = complete && memory[i] == whole[i];
    }
    EXPECT_EQ(FailureNotice::ReadFrom(memory.data()).has_value(), complete);
  }
  for (size_t byte = 0; byte < FailureNotice::kBytes; ++byte) {
    std::vector<uint64_t> memory = whole;
    reinterpret_cast<uint8_t*>(memory.data())[byte] ^= 1;
    EXPECT_FALSE(FailureNotice::ReadFrom(memory.data()).has_value()) << byte;
  }
}

// Whoever looks while it is written finds nothing, or all of it.
TEST(FailureNotice, ReadWhileItIsWritten) {
  const std::string reason = Example().reason;
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> memory(kWords);
    std::atomic<bool> go{false};
    std::thread writer([&] {
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      Example().WriteTo(memory.data());
    });
    go.store(true, std::memory_order_release);
    std::optional<FailureNotice> read;
    while (!read) read = FailureNotice::ReadFrom(memory.data());
    EXPECT_EQ(read->reason, reason);
    EXPECT_EQ(read->origin, 63);
    writer.join();
  }
}

}  // namespace
}  // namespace jax_fabric::moe
