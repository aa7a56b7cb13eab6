#include "csrc/engine/shard_plan.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace jax_fabric {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kNoLimit = ~uint64_t{0};

// All bytes exactly once, in order, no part longer than the limit.
void ExpectCovers(uint64_t length, uint64_t count, uint64_t limit) {
  uint64_t next = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const Part part = PartOf(length, count, i, limit);
    ASSERT_EQ(part.offset, next) << length << " " << i << "/" << count;
    ASSERT_LE(part.length, limit);
    if (limit % kPageBytes == 0 && part.length > 0) {
      ASSERT_EQ(part.offset % kPageBytes, 0u);
    }
    next += part.length;
  }
  EXPECT_EQ(next, length) << count << " parts, limit " << limit;
}

TEST(ShardPlan, PartLimit) {
  EXPECT_EQ(PartLimit(kNoLimit, kNoLimit), kGiB);
  EXPECT_EQ(PartLimit(10'000, kNoLimit), 8192u);
  EXPECT_EQ(PartLimit(kNoLimit, 10'000), 8192u);
  EXPECT_EQ(PartLimit(4096, 5000), 4096u);
  EXPECT_EQ(PartLimit(100, 5000), 100u);
  EXPECT_EQ(PartLimit(0, 5000), 1u);
  EXPECT_EQ(PartLimit(kGiB * 4 - 1, kGiB * 4 - 1), kGiB);
}

TEST(ShardPlan, CountDependsOnTheDeclaredMaximumOnly) {
  EXPECT_EQ(PartCount(0, 4, kGiB, Spread::kAllNics), 1u);
  EXPECT_EQ(PartCount(7, 4, kGiB, Spread::kAllNics), 1u);
  EXPECT_EQ(PartCount(4 * kMinShardBytes, 4, kGiB, Spread::kAllNics), 4u);
  EXPECT_EQ(PartCount(kGiB, 4, kGiB, Spread::kAllNics), 4u);
  EXPECT_EQ(PartCount(kGiB * 100, 4, kGiB, Spread::kAllNics), 100u);
  EXPECT_EQ(PartCount(kGiB, 4, kGiB, Spread::kOneNic), 1u);
  EXPECT_EQ(PartCount(kGiB + 1, 4, kGiB, Spread::kOneNic), 2u);
  EXPECT_EQ(PartCount((uint64_t{1} << 32) + 3, 1, kGiB, Spread::kOneNic), 5u);
}

TEST(ShardPlan, SevenBytesOverFourNics) {
  ExpectCovers(7, 4, kGiB);
  EXPECT_EQ(PartOf(7, 4, 0, kGiB).length, 7u);
  for (uint64_t i = 1; i < 4; ++i) EXPECT_EQ(PartOf(7, 4, i, kGiB).length, 0u);
}

TEST(ShardPlan, EdgesOf32Bits) {
  for (const uint64_t length : {uint64_t{1} << 31, (uint64_t{1} << 31) - 1, (uint64_t{1} << 32) - 1,
                                (uint64_t{1} << 32) + 3, 5 * kGiB, kMaxTransferBytes}) {
    for (const uint32_t nics : {1u, 2u, 3u, 4u}) {
      const uint64_t limit = length == kMaxTransferBytes ? kGiB : PartLimit((uint64_t{1} << 31) - 1, kNoLimit);
      const uint64_t count = PartCount(length, nics, limit, Spread::kAllNics);
      if (count < 1000) ExpectCovers(length, count, limit);
      const Part last = PartOf(length, count, count - 1, limit);
      EXPECT_EQ(last.offset + last.length, length);
    }
  }
}

TEST(ShardPlan, EveryLengthBelowTheMaximumFits) {
  for (const uint64_t limit : {uint64_t{1}, uint64_t{100}, uint64_t{4096}, uint64_t{12288}}) {
    for (const uint64_t max_length : {uint64_t{0}, uint64_t{1}, uint64_t{99}, uint64_t{4097}, uint64_t{50'000}}) {
      const uint64_t count = PartCount(max_length, 3, limit, Spread::kAllNics);
      for (uint64_t length = 0; length <= max_length; length += 1 + max_length / 37) ExpectCovers(length, count, limit);
      ExpectCovers(max_length, count, limit);
    }
  }
}

}  // namespace
}  // namespace jax_fabric
