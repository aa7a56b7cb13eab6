#include "csrc/engine/idle_backoff.h"

#include <gtest/gtest.h>

#include "csrc/base/clock.h"

namespace jax_fabric {
namespace {

// Each look at it takes a while; and so do yields, which are between two looks.
class StepClock final : public Clock {
 public:
  int64_t NowNs() const override {
    ++looks;
    return now_ns += step_ns;
  }

  mutable int64_t now_ns = 0, looks = 0;
  int64_t step_ns = 100;
};

// A wait that yields looks at the clock before and after that, too.
bool Yields(IdleBackoff& backoff, const StepClock& clock, int64_t yield_us) {
  const int64_t before = clock.looks;
  EXPECT_TRUE(backoff.Wait(/*idle_since_ns=*/0, yield_us));
  return clock.looks - before > 1;
}

int YieldsUntil(IdleBackoff& backoff, const StepClock& clock, int64_t until_ns) {
  int yields = 0;
  while (clock.now_ns < until_ns) yields += Yields(backoff, clock, /*yield_us=*/1'000'000) ? 1 : 0;
  return yields;
}

TEST(IdleBackoffTest, SpinsAndThenYieldsNowAndThen) {
  StepClock clock;
  IdleBackoff backoff(clock, {.spin_us = 50});
  EXPECT_EQ(YieldsUntil(backoff, clock, 49'000), 0);
  const int yields = YieldsUntil(backoff, clock, 1'049'000);
  EXPECT_GE(yields, 90);
  EXPECT_LE(yields, 100);
}

TEST(IdleBackoffTest, YieldsAtOnceWhereItMustNotSpin) {
  StepClock clock;
  IdleBackoff backoff(clock, {.spin_us = 0});
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Yields(backoff, clock, 1'000'000));
}

TEST(IdleBackoffTest, YieldsAgainAndAgainWhileOthersWantTheCore) {
  StepClock clock;
  IdleBackoff backoff(clock, {.spin_us = 50});
  EXPECT_EQ(YieldsUntil(backoff, clock, 49'000), 0);
  clock.step_ns = 5'000;  // a yield in which another thread has run
  EXPECT_TRUE(Yields(backoff, clock, 1'000'000));
  EXPECT_TRUE(backoff.core_is_wanted());
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Yields(backoff, clock, 1'000'000));
  clock.step_ns = 100;
  EXPECT_TRUE(Yields(backoff, clock, 1'000'000));
  EXPECT_FALSE(backoff.core_is_wanted());
  EXPECT_FALSE(Yields(backoff, clock, 1'000'000));
}

TEST(IdleBackoffTest, SaysWhenToSleep) {
  StepClock clock;
  IdleBackoff backoff(clock, {.spin_us = 5});
  clock.now_ns = 10'000;
  EXPECT_TRUE(Yields(backoff, clock, /*yield_us=*/20));
  // Also while it would spin until its next yield.
  clock.now_ns = 15'000;
  EXPECT_FALSE(backoff.Wait(/*idle_since_ns=*/0, /*yield_us=*/15));
  IdleBackoff sleeper(clock, {.mode = IdleMode::kSleep});
  EXPECT_FALSE(sleeper.Wait(clock.now_ns, 1'000'000));
  IdleBackoff spinner(clock, {.mode = IdleMode::kSpin});
  EXPECT_TRUE(spinner.Wait(/*idle_since_ns=*/0, /*yield_us=*/0));
}

}  // namespace
}  // namespace jax_fabric
