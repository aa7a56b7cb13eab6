// Small MoE programs by seed, on a fabric that misbehaves by the same seed: every call ends, results are the same bits
// as those of the kernels alone, and no byte lands where it may not. One seed again:
//   JAX_FABRIC_SEEDS=17 bazel run //csrc/moe:random_programs_test
// and others than CI runs: JAX_FABRIC_SEEDS=20000-40000, or scripts/test --soak --seeds 20000-40000.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/moe/testing/delivery_guard.h"
#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/random_program.h"

namespace jax_fabric::moe {
namespace {

using testing::DeliveryGuard;
using testing::ProgramOutcome;
using testing::RandomProgram;
using testing::RunProgram;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 1'000;  // each takes several times as long
#else
constexpr uint64_t kSeeds = 10'000;
#endif
constexpr uint64_t kSoakSeeds = 20 * kSeeds;
constexpr uint64_t kSlices = 10;

// Which seeds slice `index` of the run has.
SeedRange SeedsOfSlice(uint64_t index) {
  const Config config = LoadConfig().value();
  SeedRange all{0, config.soak ? kSoakSeeds : kSeeds};
  if (config.seeds.size() > 0) all = config.seeds;
  const uint64_t size = (all.size() + kSlices - 1) / kSlices;
  const uint64_t first = std::min(all.end, all.first + index * size);
  return {first, std::min(all.end, first + size)};
}

class RandomPrograms : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Slices, RandomPrograms, ::testing::Range<uint64_t>(0, kSlices));

TEST_P(RandomPrograms, LoseNothing) {
  const SeedRange seeds = SeedsOfSlice(GetParam());
  if (seeds.size() == 0) GTEST_SKIP() << "fewer seeds than slices";
  const auto begin = std::chrono::steady_clock::now();
  uint64_t landed_bytes = 0, raised = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    const ProgramOutcome outcome = RunProgram(RandomProgram::Draw(seed));
    ASSERT_EQ(outcome.failure, "") << "seed " << seed << "; again: JAX_FABRIC_SEEDS=" << seed
                                   << " bazel run //csrc/moe:random_programs_test";
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "; again: JAX_FABRIC_SEEDS=" << seed
                               << " bazel run //csrc/moe:random_programs_test";
    landed_bytes += outcome.landed_bytes;
    raised += outcome.raised;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  // Nothing is proved by programs that move nothing, or that all fail.
  if (seeds.size() > 100) {
    EXPECT_GT(landed_bytes, 100 * seeds.size());
    EXPECT_GT(raised, 0u);
    EXPECT_LT(raised, seeds.size() / 4);
  }
  std::printf("seeds %llu to %llu: nothing lost; %.1f MB landed, errors raised in %llu, %.0f seeds a minute\n",
              static_cast<unsigned long long>(seeds.first), static_cast<unsigned long long>(seeds.end),
              landed_bytes * 1e-6, static_cast<unsigned long long>(raised),
              static_cast<double>(seeds.size()) * 60 / seconds.count());
}

// The same seed is the same run.
TEST(RandomProgram, Repeats) {
  for (const uint64_t seed : {3, 8, 21}) {
    EXPECT_EQ(RandomProgram::Draw(seed).Describe(), RandomProgram::Draw(seed).Describe());
    const ProgramOutcome first = RunProgram(RandomProgram::Draw(seed));
    const ProgramOutcome second = RunProgram(RandomProgram::Draw(seed));
    EXPECT_EQ(first.landed_bytes, second.landed_bytes);
    EXPECT_EQ(first.raised, second.raised);
  }
}

// --- the guard itself

class Guarded : public ::testing::Test {
 protected:
  Guarded() : memory_(config_.MemoryBytes()) { guard_.Watch(config_, memory_.data()); }
  uint64_t Slot(int32_t source, int64_t sequence) const {
    return reinterpret_cast<uint64_t>(memory_.data()) + config_.layout.SlotOffset(source, sequence);
  }

  const MoeConfig config_ = testing::SmallConfig(2, 1);
  std::vector<std::byte> memory_;
  DeliveryGuard guard_;
};

TEST_F(Guarded, SegmentsOfOneMessageAreFine) {
  guard_.Landed(Slot(1, 0) + 64, Slot(1, 0) + 128);
  guard_.Landed(Slot(1, 0), Slot(1, 0) + 64);
  EXPECT_EQ(guard_.violation(), "");
  EXPECT_EQ(guard_.landed_bytes(), 128u);
}

TEST_F(Guarded, ASegmentThatCrossesSlotsIsNoticed) {
  guard_.Landed(Slot(1, 0) - 1, Slot(1, 0) + 1);
  EXPECT_NE(guard_.violation(), "");
}

TEST_F(Guarded, BytesBeforeTheMemoryAreNoticed) {
  guard_.Landed(Slot(0, 0) - 8, Slot(0, 0));
  EXPECT_NE(guard_.violation(), "");
}

TEST_F(Guarded, AMessageOnTopOfAnUnreadOneIsNoticed) {
  guard_.Landed(Slot(0, 1), Slot(0, 1) + 64);
  const void* const read[] = {reinterpret_cast<const void*>(Slot(0, 1)), reinterpret_cast<const void*>(Slot(1, 1))};
  guard_.HaveRead(read, 2);
  guard_.Landed(Slot(0, 1), Slot(0, 1) + 64);
  EXPECT_EQ(guard_.violation(), "");
  guard_.Landed(Slot(0, 1) + 63, Slot(0, 1) + 65);
  EXPECT_NE(guard_.violation(), "");
}

}  // namespace
}  // namespace jax_fabric::moe
