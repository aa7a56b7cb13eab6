#include "csrc/engine/imm_counter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace jax_fabric {
namespace {

constexpr Deadline kLater{1'000'000};

struct Recorder {
  int successes = 0;
  std::vector<Error> errors;
  WorkerCallback callback() {
    return {[](void* context, const Error* error) {
              auto* self = static_cast<Recorder*>(context);
              if (error == nullptr) {
                ++self->successes;
              } else {
                self->errors.push_back(*error);
              }
            },
            this};
  }
};

TEST(ImmCounter, CountsBeforeAndAfterTheExpectation) {
  ImmCounter counter("g");
  Recorder recorder;
  const uint32_t id = counter.Allocate(1).value();
  counter.Count(id);
  ASSERT_TRUE(counter.Expect(id, 3, kLater, recorder.callback()).has_value());
  counter.Count(id);
  EXPECT_EQ(recorder.successes, 0);
  counter.Count(id);
  EXPECT_EQ(recorder.successes, 1);
  EXPECT_EQ(counter.unconsumed(id), 0u);
}

TEST(ImmCounter, SurplusCarriesOver) {
  ImmCounter counter("g");
  Recorder recorder;
  const uint32_t id = counter.Allocate(1).value();
  for (int i = 0; i < 5; ++i) counter.Count(id);
  ASSERT_TRUE(counter.Expect(id, 2, kLater, recorder.callback()).has_value());
  ASSERT_TRUE(counter.Expect(id, 2, kLater, recorder.callback()).has_value());
  EXPECT_EQ(recorder.successes, 2);
  EXPECT_EQ(counter.unconsumed(id), 1u);
  ASSERT_TRUE(counter.Expect(id, 0, kLater, recorder.callback()).has_value());
  EXPECT_EQ(recorder.successes, 3);
}

TEST(ImmCounter, OneExpectationAnId) {
  ImmCounter counter("g");
  Recorder recorder;
  const uint32_t id = counter.Allocate(2).value();
  ASSERT_TRUE(counter.Expect(id, 1, kLater, recorder.callback()).has_value());
  EXPECT_EQ(counter.Expect(id, 1, kLater, recorder.callback()).error().code, ErrorCode::kAlreadyExists);
  ASSERT_TRUE(counter.Expect(id + 1, 1, kLater, recorder.callback()).has_value());
  counter.Count(id);
  EXPECT_EQ(recorder.successes, 1);
}

TEST(ImmCounter, DeadlineKeepsWhatHasCome) {
  ImmCounter counter("g");
  Recorder recorder;
  const uint32_t id = counter.Allocate(1).value();
  ASSERT_TRUE(counter.Expect(id, 3, Deadline{100}, recorder.callback()).has_value());
  counter.Count(id);
  EXPECT_EQ(counter.Expire(99), 0);
  EXPECT_EQ(counter.earliest_deadline_ns(), 100);
  EXPECT_EQ(counter.Expire(100), 1);
  ASSERT_EQ(recorder.errors.size(), 1u);
  EXPECT_EQ(recorder.errors[0].code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(recorder.errors[0].message.find("1 times of 3"), std::string::npos) << recorder.errors[0].message;
  EXPECT_EQ(counter.unconsumed(id), 1u);
  ASSERT_TRUE(counter.Expect(id, 2, kLater, recorder.callback()).has_value());
  counter.Count(id);
  EXPECT_EQ(recorder.successes, 1);
}

TEST(ImmCounter, UnknownIdsAreStrays) {
  ImmCounter counter("g");
  for (const uint32_t id : {0u, 5u, 0x7fffffffu, 0xffffffffu}) counter.Count(id);
  EXPECT_EQ(counter.strays(), 4u);
  EXPECT_EQ(counter.Expect(5, 1, kLater, {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(counter.PrepareCancellation(0xffffffffu), nullptr);
}

TEST(ImmCounter, CallbacksMayExpectAgain) {
  ImmCounter counter("g");
  struct Chain {
    ImmCounter* counter;
    uint32_t id;
    int rounds = 0;
    static void Run(void* context, const Error* error) {
      auto* self = static_cast<Chain*>(context);
      ASSERT_EQ(error, nullptr);
      if (++self->rounds < 100) {
        ASSERT_TRUE(self->counter->Expect(self->id, 1, kLater, {Run, self}).has_value());
      }
    }
  } chain{&counter, counter.Allocate(1).value()};
  ASSERT_TRUE(counter.Expect(chain.id, 1, kLater, {Chain::Run, &chain}).has_value());
  for (int i = 0; i < 100; ++i) counter.Count(chain.id);
  EXPECT_EQ(chain.rounds, 100);
}

TEST(ImmCounter, ReleasedIdsStartFromZero) {
  ImmCounter counter("g");
  Recorder recorder;
  const uint32_t first = counter.Allocate(3).value();
  counter.Count(first + 1);
  ASSERT_TRUE(counter.Expect(first + 2, 1, kLater, recorder.callback()).has_value());
  EXPECT_EQ(counter.Release(first, 3).error().code, ErrorCode::kFailedPrecondition);
  counter.Count(first + 2);
  EXPECT_TRUE(counter.Release(first, 3).has_value());
  counter.Count(first);
  EXPECT_EQ(counter.strays(), 1u);
  EXPECT_EQ(counter.Allocate(3).value(), first);
  ASSERT_TRUE(counter.Expect(first + 1, 1, kLater, recorder.callback()).has_value());
  EXPECT_EQ(recorder.successes, 1);  // of first + 2
  counter.Count(first + 1);
  EXPECT_EQ(recorder.successes, 2);
}

// An expectation that asked for it ends when a peer is lost; also one that was on its way then.
TEST(ImmCounter, EndedByALoss) {
  ImmCounter counter("g");
  Recorder asked, other;
  const uint32_t first = counter.Allocate(3).value();
  const auto expect = [&](uint32_t id, uint64_t losses_seen) {
    ASSERT_TRUE(counter.Expect(id, 2, kLater, asked.callback(), losses_seen).has_value());
  };
  EXPECT_EQ(counter.peer_losses(), 0u);
  expect(first, 0);
  ASSERT_TRUE(counter.Expect(first + 1, 1, kLater, other.callback()).has_value());
  counter.Count(first);
  counter.CountPeerLoss();
  EXPECT_EQ(counter.peer_losses(), 1u);
  ASSERT_EQ(asked.errors.size(), 1u);
  EXPECT_EQ(asked.errors[0].code, ErrorCode::kUnavailable);
  expect(first + 2, 0);
  EXPECT_EQ(asked.errors.size(), 2u);
  expect(first, 1);  // what had come still counts
  EXPECT_EQ(asked.errors.size(), 2u);
  counter.Count(first);
  EXPECT_EQ(asked.successes, 1);
  expect(first, 1);
  EXPECT_EQ(counter.Expire(kLater.at_ns), 2);
  ASSERT_EQ(asked.errors.size(), 3u);
  EXPECT_EQ(asked.errors[2].code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(other.errors.size(), 1u);
}

TEST(ImmCounter, CloseCancelsAll) {
  ImmCounter counter("g");
  Recorder recorder;
  const uint32_t first = counter.Allocate(1000).value();
  for (uint32_t i = 0; i < 999; ++i) {
    ASSERT_TRUE(counter.Expect(first + i, 1, kLater, recorder.callback()).has_value());
  }
  counter.Close();
  EXPECT_EQ(recorder.errors.size(), 999u);
  ASSERT_TRUE(counter.Expect(first + 999, 1, kLater, recorder.callback()).has_value());
  ASSERT_EQ(recorder.errors.size(), 1000u);
  for (const Error& error : recorder.errors) EXPECT_EQ(error.code, ErrorCode::kCancelled);
}

TEST(ImmCounter, RangesAreBounded) {
  ImmCounter counter("g");
  EXPECT_EQ(counter.Allocate(0).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(counter.Allocate(0xffffffff).error().code, ErrorCode::kResourceExhausted);
  const uint32_t first = counter.Allocate(100'000).value();
  counter.Count(first + 99'999);
  EXPECT_EQ(counter.unconsumed(first + 99'999), 1u);
}

}  // namespace
}  // namespace jax_fabric
