#include "csrc/fuzz/mutator.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace jax_fabric::fuzz {
namespace {

const std::vector<Input> kCorpus = {{'J', 'F', 0, 0, 0, 4, 'a', 'b', 'c', 'd'}, Input(100, 7)};

TEST(Mutator, TheSeedSaysAll) {
  Mutator one(5, kCorpus), same(5, kCorpus), other(6, kCorpus);
  int different = 0;
  for (int i = 0; i < 1000; ++i) {
    const Input input = one.Next();
    EXPECT_EQ(input, same.Next());
    different += input != other.Next();
  }
  EXPECT_GT(different, 900);
}

// Parsers' usual mistakes, each to be met soon: what a fuzz test is for.
TEST(Mutator, ReachesMistakes) {
  Mutator mutator(1, kCorpus);
  bool length_too_long = false, truncated = false, empty = false, appended = false, edge = false;
  std::set<Input> seen;
  for (int i = 0; i < 20'000; ++i) {
    const Input& input = mutator.Next();
    EXPECT_LE(input.size(), Mutator::kMaxBytes);
    seen.insert(input);
    empty |= input.empty();
    if (input.size() < 6 || input[0] != 'J' || input[1] != 'F') continue;
    length_too_long |= input.size() == 10 && input[5] > 4;
    truncated |= input.size() < 10 && input[5] == 4;
    appended |= input.size() > 10 && input[5] == 4;
    edge |= input.size() == 10 && input[2] == 0xff && input[3] == 0xff;
  }
  EXPECT_TRUE(length_too_long && truncated && empty && appended && edge);
  EXPECT_GT(seen.size(), 10'000u);
}

}  // namespace
}  // namespace jax_fabric::fuzz
