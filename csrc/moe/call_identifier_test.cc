#include "csrc/moe/call_identifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace jax_fabric::moe {
namespace {

uint64_t Get(CallIdentifier& identifier, const CallSite& site, int64_t run) {
  const Result<uint64_t> identity = identifier.Identify(site, run);
  EXPECT_TRUE(identity.has_value()) << identity.error().message;
  return identity.value_or(0);
}

TEST(CallIdentifier, EveryExecutionIsAnotherCall) {
  for (const bool one_process : {false, true}) {
    CallIdentifier identifier(one_process);
    std::set<uint64_t> seen;
    for (int64_t run = 1; run <= 10; ++run) {
      for (uint64_t serial = 1; serial <= 4; ++serial) {
        for (int loop = 0; loop < 5; ++loop) seen.insert(Get(identifier, {serial, serial * 11}, run));
      }
    }
    EXPECT_EQ(seen.size(), 10u * 4 * 5);
  }
}

// Independent sites in any order, several runs, executions of one site in a loop: equal on all ranks.
TEST(CallIdentifier, EqualOnAllRanksInAnyOrder) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    std::map<std::pair<uint64_t, int64_t>, std::vector<uint64_t>> expected;
    for (int rank = 0; rank < 4; ++rank) {
      CallIdentifier identifier(true);
      std::map<std::pair<uint64_t, int64_t>, std::vector<uint64_t>> seen;
      for (int64_t run = 1; run <= 3; ++run) {
        std::vector<uint64_t> calls;
        for (uint64_t serial = 1; serial <= 6; ++serial) calls.insert(calls.end(), serial, serial);
        std::shuffle(calls.begin(), calls.end(), random);
        // Some sites share a key.
        for (const uint64_t serial : calls) {
          seen[{serial, run}].push_back(Get(identifier, {serial, serial / 2}, run));
        }
      }
      if (rank == 0) expected = seen;
      EXPECT_EQ(seen, expected) << seed;
    }
  }
}

// Several processes have other serials; the program's order among sites of one key makes up for it.
TEST(CallIdentifier, OtherProcessesHaveOtherSerials) {
  CallIdentifier first(false), second(false);
  for (int64_t run = 1; run <= 3; ++run) {
    for (uint64_t site = 1; site <= 5; ++site) {
      for (int loop = 0; loop < 2; ++loop) {
        EXPECT_EQ(Get(first, {site, 77}, run), Get(second, {1000 + 3 * site, 77}, run));
      }
    }
  }
}

// A process that comes back counts launches from its own start, and survivors have launched more and less.
TEST(CallIdentifier, OtherProcessesHaveOtherRuns) {
  for (const int64_t first_run : {int64_t{0}, int64_t{4'000'000}, int64_t{INT32_MAX} - 1, int64_t{INT32_MIN}}) {
    CallIdentifier first(false), second(false);
    for (int64_t launch = 0; launch < 5; ++launch) {
      const int64_t other_run = static_cast<int32_t>(static_cast<uint32_t>(first_run + launch));  // as XLA counts
      for (uint64_t site = 1; site <= 3; ++site) {
        for (int loop = 0; loop < 2; ++loop) {
          EXPECT_EQ(Get(first, {site, 70 + site}, launch), Get(second, {site, 70 + site}, other_run));
        }
      }
    }
  }
}

// A launch that has not reached a call has no number, and programs are counted apart.
TEST(CallIdentifier, CountsWhatItSees) {
  CallIdentifier first(false), second(false);
  const uint64_t a1 = Get(first, {1, 50}, 10), b1 = Get(first, {2, 60}, 90), a2 = Get(first, {1, 50}, 11);
  EXPECT_EQ(Get(second, {2, 60}, 3), b1);
  EXPECT_EQ(Get(second, {1, 50}, 20), a1);
  EXPECT_EQ(Get(second, {1, 50}, 27), a2);  // six launches failed before
}

TEST(CallIdentifier, RefusesLaunchesThatRunAtTheSameTime) {
  const auto expect_refused = [](CallIdentifier& identifier, const CallSite& site, int64_t run) {
    const Result<uint64_t> wrong = identifier.Identify(site, run);
    ASSERT_FALSE(wrong.has_value());
    EXPECT_EQ(wrong.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(wrong.error().message.find("launch them from one thread"), std::string::npos);
  };
  CallIdentifier overtaken(false);
  Get(overtaken, {1, 50}, 8);
  expect_refused(overtaken, {1, 50}, 7);
  // Two programs whose calls have the same key.
  CallIdentifier interleaved(false);
  Get(interleaved, {1, 50}, 8);
  Get(interleaved, {2, 50}, 99);
  expect_refused(interleaved, {1, 50}, 8);
  // In one process runs have numbers of their own.
  CallIdentifier one_process(true);
  Get(one_process, {1, 50}, 8);
  Get(one_process, {1, 50}, 7);
  Get(one_process, {1, 50}, 8);
}

TEST(CallIdentifier, SitesOfOtherKeysStartInAnyOrder) {
  CallIdentifier first(false), second(false);
  const uint64_t a = Get(first, {1, 50}, 1), b = Get(first, {2, 60}, 1);
  EXPECT_EQ(Get(second, {8, 60}, 1), b);
  EXPECT_EQ(Get(second, {7, 50}, 1), a);
}

TEST(CallIdentifier, RefusesToGuess) {
  CallIdentifier identifier(false);
  Get(identifier, {5, 50}, 1);
  Get(identifier, {6, 50}, 1);
  const Result<uint64_t> wrong = identifier.Identify({4, 50}, 1);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(wrong.error().message.find("after="), std::string::npos);
  // Of one process there is nothing to guess.
  CallIdentifier one_process(true);
  Get(one_process, {5, 50}, 1);
  Get(one_process, {4, 50}, 1);
}

// The order is that of one run: the next one starts again.
TEST(CallIdentifier, OrderBeginsAnewWithEveryRun) {
  CallIdentifier identifier(false);
  std::set<uint64_t> seen;
  for (int64_t run = 1; run <= 3; ++run) {
    for (uint64_t serial = 1; serial <= 3; ++serial) seen.insert(Get(identifier, {serial, 50}, run));
  }
  EXPECT_EQ(seen.size(), 9u);
}

}  // namespace
}  // namespace jax_fabric::moe
