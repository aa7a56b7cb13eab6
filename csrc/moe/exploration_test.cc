// The exchange rule in every order of small programs, and each of the deliberate mistakes of mutants.h noticed.
#include "csrc/moe/testing/exploration.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/moe/mutants.h"
#include "csrc/moe/testing/random_program.h"

namespace jax_fabric::moe {
namespace {

using kernels::ExchangeKind;
using testing::Exploration;
using testing::Explore;
using testing::ExploredCall;
using testing::Mapping;
using testing::RandomProgram;
using testing::RunAnyOrder;
using testing::RunProgram;
using testing::Scope;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

ExploredCall Call(uint64_t serial, int32_t after = -1, int32_t channel = 0, int32_t rounds = 1) {
  ExploredCall call;
  call.pattern.site = {serial, serial};
  call.pattern.kind = serial % 2 == 0 ? ExchangeKind::kCombine : ExchangeKind::kRedispatch;
  call.pattern.signature = serial;
  call.pattern.pattern = serial;
  call.pattern.rows = 1;
  call.pattern.rounds = rounds;
  call.pattern.rounds_known = false;
  call.channel = channel;
  call.after = after;
  return call;
}

struct ExplorationCase {
  std::string name;
  Scope scope;
  uint64_t at_most = 0;  // runs under sanitizers, where all of them take long; 0: all
};
void PrintTo(const ExplorationCase& value, std::ostream* out) { *out << value.name; }

class EveryOrder : public ::testing::TestWithParam<ExplorationCase> {};

TEST_P(EveryOrder, EndsWell) {
  const uint64_t at_most = kSanitized && !LoadConfig().value().soak ? GetParam().at_most : 0;
  const Exploration exploration = Explore(GetParam().scope, at_most == 0 ? 1'000'000 : at_most);
  EXPECT_EQ(exploration.complete, at_most == 0) << exploration.runs;
  EXPECT_EQ(exploration.failure, "");
  EXPECT_GT(exploration.runs - exploration.redundant, 1u);
  std::printf("%s: %llu runs, %llu of them redundant, %llu states, at most %llu events\n", GetParam().name.c_str(),
              static_cast<unsigned long long>(exploration.runs), static_cast<unsigned long long>(exploration.redundant),
              static_cast<unsigned long long>(exploration.states),
              static_cast<unsigned long long>(exploration.longest));
}

Scope Merged(Scope scope) {
  scope.merge_states = true;
  return scope;
}

const Scope kTwoCalls{.ranks = 2, .program = {Call(1), Call(2, 0)}};
const Scope kTwoCallsInARow{.ranks = 2, .program = {Call(1), Call(2, 0)}, .late_completions = false};
const Scope kTwoCallsMapped{
    .ranks = 2, .mapping = Mapping::kAll, .program = {Call(1), Call(2, 0)}, .late_completions = false};
const Scope kTwoIndependentCalls{.ranks = 2, .program = {Call(1), Call(2)}, .late_completions = false};
const Scope kTwoChannels{.ranks = 2, .channels = 2, .program = {Call(1), Call(2, -1, 1)}, .late_completions = false};
const Scope kTwoRoundsThenOne{.ranks = 2, .program = {Call(1, -1, 0, 2), Call(2, 0)}, .late_completions = false};
const Scope kThreeRanks{.ranks = 3, .program = {Call(1)}, .late_completions = false};
const Scope kThreeRanksTwoCalls{.ranks = 3, .program = {Call(1), Call(2, 0)}, .late_completions = false};

Scope WithDeviations(Scope scope, int most) {
  scope.max_deviations = most;
  return scope;
}

INSTANTIATE_TEST_SUITE_P(SmallPrograms, EveryOrder,
                         ::testing::Values(ExplorationCase{"TwoRanksOneCall", {.ranks = 2, .program = {Call(1)}}},
                                           ExplorationCase{"TwoRanksTwoCallsInARow", kTwoCallsInARow},
                                           ExplorationCase{"TwoRanksTwoCallsLateCompletions", Merged(kTwoCalls)},
                                           ExplorationCase{"TwoRanksTwoCallsMapped", Merged(kTwoCallsMapped)},
                                           ExplorationCase{"TwoRanksTwoIndependentCalls", Merged(kTwoIndependentCalls)},
                                           ExplorationCase{"TwoRanksTwoChannels", Merged(kTwoChannels)},
                                           ExplorationCase{"TwoRanksTwoRoundsThenOne", kTwoRoundsThenOne},
                                           ExplorationCase{"ThreeRanksOneCall", Merged(kThreeRanks)},
                                           ExplorationCase{"ThreeRanksTwoCalls", Merged(kThreeRanksTwoCalls), 500},
                                           ExplorationCase{"ThreeRanksTwoCallsTwoDeviations",
                                                           WithDeviations(kThreeRanksTwoCalls, 2), 500}),
                         [](const auto& info) { return info.param.name; });

// Without merging every state is met, since sleep sets leave out orders and no states: if two different states had the
// same hash, or the hash forgot something that matters, fewer would be met with it.
TEST(MergedStates, NoneIsLost) {
  for (const Scope& scope : {kTwoCallsInARow, kTwoCallsMapped, kTwoRoundsThenOne, kThreeRanks}) {
    const bool large = scope.ranks > 2 || scope.mapping != Mapping::kNone;
    if (large && !LoadConfig().value().soak) continue;
    const Exploration all = Explore(scope, 1'000'000), merged = Explore(Merged(scope), 1'000'000);
    EXPECT_TRUE(all.complete && merged.complete);
    EXPECT_EQ(all.states, merged.states);
    EXPECT_LT(merged.runs, all.runs);
  }
}

// Larger programs, in orders drawn by seed.
std::vector<Scope> LargerScopes() {
  std::vector<ExploredCall> independent, chain;
  for (uint64_t i = 0; i < 12; ++i) independent.push_back(Call(i + 1, -1, 0, 1 + i % 3));
  for (int32_t i = 0; i < 6; ++i) chain.push_back(Call(i + 1, i - 1, 0, 1 + i % 2));
  return {
      {.ranks = 3, .program = chain},
      {.ranks = 3, .mapping = Mapping::kAll, .program = chain},
      {.ranks = 2, .program = independent},
      {.ranks = 3, .mapping = Mapping::kSome, .program = independent},
  };
}

TEST(AnyOrder, LargerPrograms) {
  for (const Scope& scope : LargerScopes()) {
    for (uint64_t seed = 0; seed < 100; ++seed) ASSERT_EQ(RunAnyOrder(scope, seed), "") << "seed " << seed;
  }
}

// --- the test of the tests

class Mutants : public ::testing::TestWithParam<Mutant> {
 protected:
  Mutants() { active_mutant = GetParam(); }
  ~Mutants() override { active_mutant = Mutant::kNone; }
};

TEST_P(Mutants, AreNoticedInSomeOrder) {
  std::string failure;
  for (const Scope& scope : LargerScopes()) {
    for (uint64_t seed = 0; seed < 100 && failure.empty(); ++seed) failure = RunAnyOrder(scope, seed);
  }
  EXPECT_NE(failure, "");
}

// Those of random_programs_test, with the real kernels; every other one with more calls at once than there is room for
// announcements.
RandomProgram ProgramOf(uint64_t seed) {
  RandomProgram program = RandomProgram::Draw(seed);
  if (seed % 2 == 0) return program;
  program.layers = 12;
  program.channels = 1;
  program.submit_probability = 0.8;
  return program;
}

TEST_P(Mutants, AreNoticedByRandomPrograms) {
  std::string failure;
  for (uint64_t seed = 0; seed < 1'000 && failure.empty(); ++seed) failure = RunProgram(ProgramOf(seed)).failure;
  EXPECT_NE(failure, "");
}

TEST(NoMutant, NothingIsNoticed) {
  for (uint64_t seed = 0; seed < 100; ++seed) ASSERT_EQ(RunProgram(ProgramOf(seed)).failure, "") << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(Each, Mutants,
                         ::testing::Values(Mutant::kReuseStagingBeforeItLeft, Mutant::kReuseAnnouncementBeforeItLeft,
                                           Mutant::kAlwaysEvenSlots, Mutant::kUnpackOtherParity,
                                           Mutant::kOddImmediateNeverSent, Mutant::kExpectOneImmediateLess,
                                           Mutant::kExpectOneImmediateMore, Mutant::kUnpackWithoutWaiting,
                                           Mutant::kRunInOrderOfSubmission, Mutant::kClaimAnyNumber,
                                           Mutant::kIssueWithoutRoom, Mutant::kOneRoundLess));

}  // namespace
}  // namespace jax_fabric::moe
