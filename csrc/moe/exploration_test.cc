// The exchange rule in every order of small programs, and each of the deliberate mistakes of mutants.h noticed.
#include "csrc/moe/testing/exploration.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/moe/mutants.h"

namespace jax_fabric::moe {
namespace {

using kernels::ExchangeKind;
using testing::Exploration;
using testing::Explore;
using testing::ExploredCall;
using testing::Mapping;
using testing::RunAnyOrder;
using testing::Scope;

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
  uint64_t at_most = 0;  // runs, where all of them take long; 0: all
  bool endless = false;  // a soak cannot run them all either
};
void PrintTo(const ExplorationCase& value, std::ostream* out) { *out << value.name; }

class EveryOrder : public ::testing::TestWithParam<ExplorationCase> {};

TEST_P(EveryOrder, EndsWell) {
  // scripts/test --soak
  const bool soak = LoadConfig().value().soak && !GetParam().endless;
  const uint64_t at_most = soak ? 0 : GetParam().at_most;
  const Exploration exploration = Explore(GetParam().scope, at_most == 0 ? 1'000'000 : at_most);
  EXPECT_EQ(exploration.complete, at_most == 0) << exploration.runs;
  EXPECT_EQ(exploration.failure, "");
  EXPECT_GT(exploration.runs - exploration.redundant, 1u);
  std::printf("%s: %llu runs, %llu of them redundant, at most %llu events\n", GetParam().name.c_str(),
              static_cast<unsigned long long>(exploration.runs), static_cast<unsigned long long>(exploration.redundant),
              static_cast<unsigned long long>(exploration.longest));
}

INSTANTIATE_TEST_SUITE_P(
    SmallPrograms, EveryOrder,
    ::testing::Values(
        ExplorationCase{"TwoRanksOneCall", {.ranks = 2, .program = {Call(1)}}},
        ExplorationCase{"TwoRanksTwoCallsInARow",
                        {.ranks = 2, .program = {Call(1), Call(2, 0)}, .late_completions = false}},
        ExplorationCase{"TwoRanksTwoCallsLateCompletions", {.ranks = 2, .program = {Call(1), Call(2, 0)}}, 2000, true},
        ExplorationCase{
            "TwoRanksTwoCallsMapped",
            {.ranks = 2, .mapping = Mapping::kAll, .program = {Call(1), Call(2, 0)}, .late_completions = false}},
        ExplorationCase{"TwoRanksTwoIndependentCalls",
                        {.ranks = 2, .program = {Call(1), Call(2)}, .late_completions = false}},
        ExplorationCase{"TwoRanksTwoChannels",
                        {.ranks = 2, .channels = 2, .program = {Call(1), Call(2, -1, 1)}, .late_completions = false},
                        2000},
        ExplorationCase{"TwoRanksTwoRoundsThenOne",
                        {.ranks = 2, .program = {Call(1, -1, 0, 2), Call(2, 0)}, .late_completions = false}},
        ExplorationCase{"ThreeRanksOneCall", {.ranks = 3, .program = {Call(1)}, .late_completions = false}, 2000}),
    [](const auto& info) { return info.param.name; });

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

// What any of the above says about the protocol with this mistake.
std::string Notice(Mutant mutant) {
  active_mutant = mutant;
  std::string failure;
  for (const Scope& scope : LargerScopes()) {
    for (uint64_t seed = 0; seed < 100 && failure.empty(); ++seed) failure = RunAnyOrder(scope, seed);
  }
  active_mutant = Mutant::kNone;
  return failure;
}

class Mutants : public ::testing::TestWithParam<Mutant> {};

TEST_P(Mutants, AreNoticed) { EXPECT_NE(Notice(GetParam()), ""); }

INSTANTIATE_TEST_SUITE_P(Each, Mutants,
                         ::testing::Values(Mutant::kReuseStagingBeforeItLeft, Mutant::kReuseAnnouncementBeforeItLeft,
                                           Mutant::kAlwaysEvenSlots, Mutant::kUnpackOtherParity,
                                           Mutant::kOddImmediateNeverSent, Mutant::kExpectOneImmediateLess,
                                           Mutant::kExpectOneImmediateMore, Mutant::kUnpackWithoutWaiting,
                                           Mutant::kRunInOrderOfSubmission, Mutant::kClaimAnyNumber,
                                           Mutant::kIssueWithoutRoom, Mutant::kOneRoundLess));

}  // namespace
}  // namespace jax_fabric::moe
