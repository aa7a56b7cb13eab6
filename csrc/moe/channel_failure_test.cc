// What happens when ranks do not do the same: every call ends, with an error that says who and why.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/moe/channel.h"
#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/pattern_exchange.h"

namespace jax_fabric::moe {
namespace {

using kernels::ExchangeKind;
using testing::FabricOptions;
using testing::Mapping;
using testing::MoeFabric;
using testing::PatternCall;
using testing::PatternExchange;
using testing::SmallConfig;
using testing::Transport;

class ChannelFailure : public ::testing::TestWithParam<std::tuple<Transport, Mapping>> {
 protected:
  void Start(int32_t ranks, int32_t channels = 2, int64_t timeout_us = 0) {
    const FabricOptions options{
        .ranks = ranks, .transport = std::get<0>(GetParam()), .mapping = std::get<1>(GetParam())};
    MoeConfig config = SmallConfig(ranks, channels);
    if (timeout_us > 0) config.timeout_us = timeout_us;
    fabric_ = std::make_unique<MoeFabric>(options, config);
    fabric_->Connect();
  }
  void TearDown() override {
    fabric_.reset();  // refers to the operations
  }

  PatternExchange& Submit(int32_t rank, const PatternCall& call, int32_t channel = 0) {
    operations_.push_back(std::make_unique<PatternExchange>(fabric_->context(rank).config().layout, call));
    PatternExchange& operation = *operations_.back();
    fabric_->channel(rank, channel).Submit(&operation);
    return operation;
  }
  static PatternCall Call(uint64_t serial) {
    PatternCall call;
    call.site = {serial, 5};
    call.pattern = serial;
    return call;
  }
  // One exchange of all ranks that succeeds.
  void ExchangeAll(uint64_t serial, int32_t channel = 0) {
    std::vector<PatternExchange*> all;
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) {
      all.push_back(&Submit(rank, Call(serial), channel));
    }
    EXPECT_TRUE(fabric_->StepUntil([&] { return Finished(all); }));
    for (PatternExchange* each : all) EXPECT_TRUE(each->ok()) << each->error().message;
  }
  static bool Finished(const std::vector<PatternExchange*>& operations) {
    for (const PatternExchange* each : operations) {
      if (!each->finished()) return false;
    }
    return true;
  }
  // Steps, in long strides, until all have ended.
  void WaitForAll(const std::vector<PatternExchange*>& operations) {
    for (int i = 0; i < 1000 && !Finished(operations); ++i) {
      fabric_->StepAll(20);
      fabric_->Sleep(10'000);
    }
    ASSERT_TRUE(Finished(operations));
  }
  static bool Contains(const PatternExchange& operation, const std::string& text) {
    return operation.error().message.find(text) != std::string::npos;
  }

  std::vector<std::unique_ptr<PatternExchange>> operations_;
  std::unique_ptr<MoeFabric> fabric_;
};

INSTANTIATE_TEST_SUITE_P(Paths, ChannelFailure,
                         ::testing::Combine(::testing::Values(Transport::kSimulated, Transport::kLocal),
                                            ::testing::Values(Mapping::kNone, Mapping::kAll)));

TEST_P(ChannelFailure, AbsentRanksAreNamed) {
  struct Case {
    std::vector<bool> absent;
    std::string names;
  };
  const std::vector<Case> cases = {
      {{false, false, true, false, false}, "for rank(s) 2; 4 of 5 ranks came"},
      {{false, true, false, false, true}, "for rank(s) 1, 4; 3 of 5 ranks came"},
      {{false, true, true, true, true}, "for rank(s) 1, 2, 3, 4; 1 of 5 ranks came"},
  };
  for (const int exchanges_before : {0, 1, 2}) {
    for (const Case& each : cases) {
      SCOPED_TRACE(fmt::format("{} after {}", each.names, exchanges_before));
      Start(5);
      for (int i = 0; i < exchanges_before; ++i) ExchangeAll(100 + i);
      std::vector<PatternExchange*> waiting;
      for (int32_t rank = 0; rank < 5; ++rank) {
        if (!each.absent[rank]) waiting.push_back(&Submit(rank, Call(1)));
      }
      fabric_->StepAll(100);
      EXPECT_FALSE(waiting.front()->finished());
      WaitForAll(waiting);
      for (PatternExchange* operation : waiting) {
        EXPECT_EQ(operation->error().code, ErrorCode::kDeadlineExceeded);
        EXPECT_TRUE(Contains(*operation, each.names)) << operation->error().message;
        EXPECT_TRUE(Contains(*operation, fmt::format("call {})", exchanges_before + 1)));
        EXPECT_EQ(operation->finishes(), 1);
      }
      // The other channel goes on, this one stays as it is.
      for (uint64_t i = 0; i < 5; ++i) ExchangeAll(50 + i, 1);
      for (int32_t rank = 0; rank < 5; ++rank) {
        if (each.absent[rank]) continue;
        const Error* error = fabric_->channel(rank, 0).error();
        ASSERT_NE(error, nullptr);
        EXPECT_EQ(fabric_->context(rank).error(), error);
        PatternExchange& late = Submit(rank, Call(2));
        EXPECT_TRUE(late.finished());
        EXPECT_EQ(late.error().message, error->message);
        EXPECT_EQ(late.packs(), 0);
        EXPECT_EQ(fabric_->channel(rank, 1).error(), nullptr);
      }
      fabric_.reset();
    }
  }
}

// In the middle of a call: which round, of how many, and who. The deadline is that of the whole call.
TEST_P(ChannelFailure, AbsentInALaterRound) {
  for (const bool rounds_known : {false, true}) {
    for (const int32_t last_round : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("known {} rounds {}", rounds_known, last_round));
      Start(3);
      ExchangeAll(100);
      PatternCall call = Call(1);
      call.rounds = 5;
      call.rounds_known = rounds_known;
      PatternCall shorter = call;
      shorter.rounds = last_round;
      std::vector<PatternExchange*> waiting = {&Submit(0, call), &Submit(1, call)};
      PatternExchange& absent = Submit(2, shorter);
      WaitForAll(waiting);
      EXPECT_TRUE(absent.ok()) << absent.error().message;
      for (const PatternExchange* each : waiting) {
        EXPECT_EQ(each->error().code, ErrorCode::kDeadlineExceeded);
        EXPECT_TRUE(Contains(*each, fmt::format("(channel 0, call 2, round {} of 5)", last_round + 1)))
            << each->error().message;
        EXPECT_TRUE(Contains(*each, "for rank(s) 2; 2 of 3 ranks came")) << each->error().message;
        EXPECT_EQ(each->packs(), last_round + 1);
        EXPECT_EQ(each->damage(), "");
      }
      // The channel is poisoned in the middle of a call; the other one goes on.
      PatternExchange& late = Submit(0, Call(2));
      EXPECT_EQ(late.error().message, waiting[0]->error().message);
      EXPECT_EQ(late.packs(), 0);
      ExchangeAll(9, 1);
      fabric_.reset();
    }
  }
}

// Rounds that each come in time do not put off the deadline.
TEST_P(ChannelFailure, DeadlineIsOfTheWholeCall) {
  Start(2);
  PatternCall call = Call(1);
  call.rounds = 1000;
  const std::vector<PatternExchange*> both = {&Submit(0, call), &Submit(1, call)};
  int64_t slept_us = 0;
  while (!Finished(both) && slept_us < 5'000'000) {
    fabric_->StepAll(2);
    fabric_->Sleep(20'000);
    slept_us += 20'000;
  }
  ASSERT_TRUE(Finished(both));
  EXPECT_GE(slept_us, 900'000);
  EXPECT_LE(slept_us, 1'500'000);
  int failures = 0;
  for (const PatternExchange* each : both) {
    EXPECT_GT(each->packs(), 5);
    EXPECT_LT(each->packs(), 1000);
    failures += each->error().code == ErrorCode::kDeadlineExceeded;
  }
  EXPECT_EQ(failures, 2);
}

// A rank that is closed in the middle of its rounds ends its own call at once; the others end theirs at the deadline.
TEST_P(ChannelFailure, ClosedBetweenRounds) {
  Start(3, 1);
  PatternCall call = Call(1);
  call.rounds = 1000;
  std::vector<PatternExchange*> all;
  for (int32_t rank = 0; rank < 3; ++rank) all.push_back(&Submit(rank, call));
  ASSERT_TRUE(fabric_->StepUntil([&] { return all[2]->packs() > 20; }));
  EXPECT_TRUE(fabric_->StepUntil([&] { return fabric_->context(2).Close(fabric_->In(0)); }));
  EXPECT_TRUE(all[2]->finished());
  EXPECT_EQ(all[2]->error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(all[0]->finished());
  WaitForAll(all);
  for (const int32_t rank : {0, 1}) {
    EXPECT_EQ(all[rank]->error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(*all[rank], "of 1000): rank")) << all[rank]->error().message;
    EXPECT_EQ(all[rank]->finishes(), 1);
    EXPECT_EQ(all[rank]->damage(), "");
  }
}

// Only rank 0 hands out numbers: without it nobody starts, and the error says so.
TEST_P(ChannelFailure, Rank0IsAbsent) {
  for (const int exchanges_before : {0, 3}) {
    Start(3);
    for (int i = 0; i < exchanges_before; ++i) ExchangeAll(100 + i);
    const std::vector<PatternExchange*> waiting = {&Submit(1, Call(1)), &Submit(2, Call(1))};
    WaitForAll(waiting);
    for (const PatternExchange* operation : waiting) {
      EXPECT_EQ(operation->error().code, ErrorCode::kDeadlineExceeded);
      EXPECT_TRUE(Contains(*operation, "for rank 0 to start the same call")) << operation->error().message;
      EXPECT_EQ(operation->packs(), 0);
    }
    ExchangeAll(9, 1);
    fabric_.reset();
  }
}

// A rank that comes late finds what the others sent, and hears at its next call that they have gone.
TEST_P(ChannelFailure, LateRankLearnsOfIt) {
  Start(3);
  const std::vector<PatternExchange*> waiting = {&Submit(0, Call(1)), &Submit(1, Call(1))};
  WaitForAll(waiting);
  PatternExchange& late = Submit(2, Call(1));
  PatternExchange& next = Submit(2, Call(2));
  WaitForAll({&late, &next});
  EXPECT_TRUE(late.ok()) << late.error().message;
  EXPECT_EQ(late.damage(), "");
  EXPECT_EQ(next.error().code, ErrorCode::kDeadlineExceeded);
}

// Calls that wait behind the one that failed end with its error.
TEST_P(ChannelFailure, ParkedCallsEndWithTheFirstCause) {
  Start(2);
  std::vector<PatternExchange*> waiting;
  for (uint64_t i = 0; i < 30; ++i) waiting.push_back(&Submit(0, Call(i)));
  WaitForAll(waiting);
  for (const PatternExchange* operation : waiting) {
    EXPECT_EQ(operation->error().message, waiting.front()->error().message);
    EXPECT_TRUE(Contains(*operation, "rank(s) 1;"));
    EXPECT_EQ(operation->finishes(), 1);
  }
  EXPECT_EQ(waiting[0]->packs(), 1);
  EXPECT_EQ(waiting[1]->packs(), 0);
}

// A rank with a call of its own that nobody else makes waits for a number, and not for ever.
TEST_P(ChannelFailure, ACallThatOthersDoNotMake) {
  Start(2);
  PatternExchange& own = Submit(1, Call(77));
  for (uint64_t i = 0; i < 400 && !own.finished(); ++i) {
    // Announcements keep coming, each of another call.
    PatternExchange& here = Submit(0, Call(i % 50));
    PatternExchange& there = Submit(1, Call(i % 50));
    fabric_->StepUntil([&] { return here.finished() && there.finished(); }, 100);
    fabric_->Sleep(10'000);
    if (own.finished()) break;
    ASSERT_TRUE(here.ok() && there.ok()) << here.error().message << there.error().message;
  }
  ASSERT_TRUE(own.finished());
  EXPECT_EQ(own.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(own.packs(), 0);
}

struct Mismatch {
  std::string name;
  std::function<void(PatternCall&)> change;
  std::string words;
};

TEST_P(ChannelFailure, CallsThatDoNotFit) {
  const std::vector<Mismatch> mismatches = {
      {"signature", [](PatternCall& call) { call.signature = 8; }, "the peer's call has another signature"},
      {"kind", [](PatternCall& call) { call.kind = ExchangeKind::kRedispatch; }, "the peer makes another kind of call"},
      {"rows", [](PatternCall& call) { call.rows = 3; }, "not the rows that the dispatch before calls for"},
      {"too many rows",
       [](PatternCall& call) {
         call.rows = 4;
         call.check_rows = false;
       },
       "not the rows that the dispatch before calls for"},
  };
  for (const Mismatch& mismatch : mismatches) {
    for (const int32_t odd : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("{} of rank {}", mismatch.name, odd));
      Start(3);
      ExchangeAll(100);
      std::vector<PatternExchange*> all;
      for (int32_t rank = 0; rank < 3; ++rank) {
        PatternCall call = Call(1);
        call.rows = 2;
        if (rank == odd) mismatch.change(call);
        all.push_back(&Submit(rank, call));
      }
      WaitForAll(all);
      for (int32_t rank = 0; rank < 3; ++rank) {
        const Error& error = all[rank]->error();
        if (rank == odd && all[rank]->ok()) {
          // It does not ask for what the others send.
          EXPECT_EQ(mismatch.name, "too many rows");
          continue;
        }
        EXPECT_EQ(error.code, ErrorCode::kFailedPrecondition);
        EXPECT_TRUE(Contains(*all[rank], mismatch.words)) << error.message;
        const int32_t named = rank != odd ? odd : odd == 0 ? 1 : 0;
        EXPECT_TRUE(Contains(*all[rank], fmt::format("rank {} cannot use the message of rank {}", rank, named)))
            << error.message;
      }
      ExchangeAll(9, 1);
      fabric_.reset();
    }
  }
}

// Faults of the NIC, which only the simulated domain has.
class NicFailure : public ChannelFailure {};
INSTANTIATE_TEST_SUITE_P(Paths, NicFailure,
                         ::testing::Combine(::testing::Values(Transport::kSimulated),
                                            ::testing::Values(Mapping::kNone, Mapping::kAll)));

TEST_P(NicFailure, WritesThatFail) {
  for (int post = 0; post < 12; ++post) {
    for (const bool reject : {false, true}) {
      SCOPED_TRACE(fmt::format("post {} reject {}", post, reject));
      Start(3, 1, 20'000'000);
      auto& faults = fabric_->nic(0)->faults();
      (reject ? faults.reject_post : faults.fail_post) = post;
      std::vector<PatternExchange*> all;
      for (uint64_t serial = 1; serial <= 4; ++serial) {
        for (int32_t rank = 0; rank < 3; ++rank) all.push_back(&Submit(rank, Call(serial)));
      }
      WaitForAll(all);
      const Error* cause = fabric_->context(0).error();
      ASSERT_NE(cause, nullptr);
      EXPECT_NE(cause->message.find("rank 0 cannot send to rank"), std::string::npos) << cause->message;
      // The others say the same cause.
      for (const int32_t rank : {1, 2}) {
        const Error* error = fabric_->context(rank).error();
        ASSERT_NE(error, nullptr);
        EXPECT_EQ(error->code, cause->code) << error->message;
        EXPECT_NE(error->message.find("waits for rank 0, which has given up: " + cause->message), std::string::npos)
            << error->message;
      }
      for (PatternExchange* each : all) EXPECT_EQ(each->damage(), "");
      fabric_.reset();
    }
  }
}

// A rank hears of it although the one that has given up cannot reach it: notices are handed on, as they are.
TEST_P(NicFailure, NoticesAreHandedOn) {
  Start(3, 1, 20'000'000);
  ExchangeAll(1);
  fabric_->nic(0)->KillPeer(1, "the cable was pulled");  // rank 2, which has not lost rank 0
  std::vector<PatternExchange*> all;
  for (int32_t rank = 0; rank < 3; ++rank) all.push_back(&Submit(rank, Call(2)));
  WaitForAll(all);
  const std::string& cause = all[0]->error().message;
  EXPECT_NE(cause.find(" rank 2, which is lost"), std::string::npos) << cause;
  // Rank 1 may have all that it waits for.
  for (const int32_t rank : {1, 2}) {
    if (rank == 1 && all[rank]->ok()) continue;
    EXPECT_TRUE(Contains(*all[rank], fmt::format("rank {} waits for rank 0, which has given up: {}", rank, cause)))
        << all[rank]->error().message;
  }
}

// Nobody waits for the deadline: not who is in the exchange, nor who waits for its turn, nor who comes later.
TEST_P(NicFailure, PeerIsKilled) {
  for (const int32_t rounds : {1, 7}) {
    Start(3);
    ExchangeAll(1);
    PatternCall call = Call(2);
    call.rounds = rounds;
    std::vector<PatternExchange*> all;
    for (int32_t rank = 0; rank < 2; ++rank) all.push_back(&Submit(rank, call));
    if (rounds > 1) {
      PatternCall shorter = call;
      shorter.rounds = 3;
      Submit(2, shorter);
    }
    fabric_->StepAll(100);
    EXPECT_EQ(all[0]->packs(), rounds == 1 ? 1 : 4);
    for (simulated::SimulatedDomain* nic : {fabric_->nic(0), fabric_->nic(1)}) {
      nic->KillPeer(1, "the cable was pulled");
    }
    all.push_back(&Submit(0, Call(3)));
    EXPECT_TRUE(fabric_->StepUntil([&] { return Finished(all); }, 100));
    all.push_back(&Submit(0, Call(4)));
    all.push_back(&Submit(1, Call(3), 1));
    EXPECT_TRUE(fabric_->StepUntil([&] { return Finished(all); }, 100));
    for (PatternExchange* each : all) {
      EXPECT_EQ(each->finishes(), 1);
      EXPECT_EQ(each->error().code, ErrorCode::kUnavailable);
      EXPECT_TRUE(Contains(*each, "waits for rank 2, which is lost: the peer is lost: the cable was pulled"))
          << each->error().message;
    }
    EXPECT_TRUE(Contains(*all[0], rounds == 1 ? "(channel 0, call 2)" : "(channel 0, call 2, round 4 of 7)"))
        << all[0]->error().message;
    fabric_.reset();
  }
}

// Rank 0 is lost before it numbers the call.
TEST_P(NicFailure, Rank0IsKilled) {
  Start(3);
  ExchangeAll(1);
  PatternExchange& waiting = Submit(1, Call(2));
  fabric_->StepAll(20);
  EXPECT_FALSE(waiting.finished());
  fabric_->nic(1)->KillPeer(0, "gone");
  EXPECT_TRUE(fabric_->StepUntil([&] { return waiting.finished(); }, 100));
  EXPECT_EQ(waiting.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Contains(waiting, "moe combine (channel 0): rank 1 waits for rank 0, which is lost"))
      << waiting.error().message;
}

// Whoever has done its part may go: what it sent is used.
TEST_P(NicFailure, PeerIsLostAfterItsPart) {
  Start(3);
  ExchangeAll(1);
  PatternExchange& here = Submit(0, Call(2));
  PatternExchange& gone = Submit(2, Call(2));
  fabric_->StepAll(100);
  fabric_->nic(0)->KillPeer(1, "it has ended");
  fabric_->StepAll(100);
  EXPECT_FALSE(here.finished());
  PatternExchange& last = Submit(1, Call(2));
  EXPECT_TRUE(fabric_->StepUntil([&] { return here.finished() && last.finished() && gone.finished(); }, 200));
  EXPECT_TRUE(here.ok()) << here.error().message;
  PatternExchange& next = Submit(0, Call(3));
  EXPECT_TRUE(fabric_->StepUntil([&] { return next.finished(); }, 100));
  EXPECT_EQ(next.error().code, ErrorCode::kUnavailable);
}

// A rank stores its message into mapped memory, and dies before it can tell: nobody waits for the deadline.
TEST_P(NicFailure, PeerDiesBetweenMessageAndImmediate) {
  constexpr int64_t kTimeoutUs = 60'000'000;
  Start(3, 1, kTimeoutUs);
  ExchangeAll(1);
  fabric_->nic(2)->faults().again = {0, 1};
  std::vector<PatternExchange*> all;
  for (int32_t rank = 0; rank < 3; ++rank) all.push_back(&Submit(rank, Call(2)));
  fabric_->StepAll(100);
  for (int32_t rank = 0; rank < 2; ++rank) fabric_->nic(rank)->KillPeer(1, "killed");
  const Deadline early = fabric_->In(kTimeoutUs / 4);
  std::vector<PatternExchange*> survivors = {all[0], all[1]};
  WaitForAll(survivors);
  EXPECT_FALSE(early.Passed(fabric_->group(0)->clock()));
  for (PatternExchange* each : survivors) {
    EXPECT_EQ(each->error().code, ErrorCode::kUnavailable);
    EXPECT_TRUE(Contains(*each, "waits for rank 2, which is lost")) << each->error().message;
  }
  fabric_->nic(2)->faults().again.clear();  // so that it can be closed
}

// "Again" for ever: the deadline ends it.
TEST_P(NicFailure, PeerThatTakesNothing) {
  Start(3);
  ExchangeAll(1);
  fabric_->nic(0)->faults().again = {1};
  std::vector<PatternExchange*> all;
  for (int32_t rank = 0; rank < 3; ++rank) all.push_back(&Submit(rank, Call(2)));
  WaitForAll(all);
  int failures = 0;
  for (PatternExchange* each : all) failures += each->error().code == ErrorCode::kDeadlineExceeded;
  EXPECT_GE(failures, 1);
}

}  // namespace
}  // namespace jax_fabric::moe
