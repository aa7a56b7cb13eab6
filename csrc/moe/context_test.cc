// Introductions and the end of a context.
#include "csrc/moe/context.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"
#include "csrc/base/fabric_key.h"
#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/pattern_exchange.h"

namespace jax_fabric::moe {
namespace {

using testing::FabricOptions;
using testing::Mapping;
using testing::MoeFabric;
using testing::PatternCall;
using testing::PatternExchange;
using testing::SmallConfig;
using testing::Transport;

std::string MessageOf(const Status& status) { return status ? "" : status.error().message; }

PatternCall Call(uint64_t serial) {
  PatternCall call;
  call.site = {serial, 5};
  call.pattern = serial;
  return call;
}

std::unique_ptr<PatternExchange> Submit(MoeFabric& fabric, int32_t rank, const PatternCall& call, int32_t channel = 0) {
  auto operation = std::make_unique<PatternExchange>(fabric.context(rank).config().layout, call);
  fabric.channel(rank, channel).Submit(operation.get());
  return operation;
}

// One look, then a step, as often as it takes.
bool CloseStepping(MoeFabric& fabric, int32_t rank) {
  return fabric.StepUntil([&] { return fabric.context(rank).Close(fabric.In(0)); });
}

TEST(Context, RefusesAConfigurationThatIsNotValid) {
  MoeFabric fabric({.ranks = 1}, SmallConfig(1));
  InlineExecutor executor;
  MoeConfig config = SmallConfig(1);
  config.channels = 0;
  const auto context = Context::Create(config, fabric.group(0), &executor);
  ASSERT_FALSE(context.has_value());
  EXPECT_EQ(context.error().message, "channels=0: must be in [1, 64]");
}

TEST(Context, MapsWhatCanBeMapped) {
  for (const Mapping mapping : {Mapping::kNone, Mapping::kAll}) {
    MoeFabric fabric({.ranks = 3, .mapping = mapping}, SmallConfig(3));
    EXPECT_EQ(fabric.context(0).channel(0), nullptr);
    EXPECT_EQ(fabric.context(0).error(), nullptr);
    fabric.Connect();
    EXPECT_EQ(fabric.context(0).mapped_peers(), mapping == Mapping::kAll ? 3 : 1);
    EXPECT_NE(fabric.context(0).channel(1), nullptr);
    EXPECT_EQ(fabric.context(0).channel(2), nullptr);
    EXPECT_EQ(fabric.context(0).channel(-1), nullptr);
  }
}

// A context that never got to know its peers must not take them for those of another one.
TEST(Context, LostRanks) {
  MoeFabric fabric({.ranks = 3}, SmallConfig(3));
  fabric.Connect();
  EXPECT_EQ(fabric.context(0).LostRanks(), std::vector<int32_t>());
  fabric.nic(0)->KillPeer(1, "gone");
  fabric.StepAll(10);
  EXPECT_EQ(fabric.context(0).LostRanks(), std::vector<int32_t>{2});
  testing::QueueExecutor executor;
  const auto next = Context::Create(fabric.context(0).config(), fabric.group(0), &executor).value();
  EXPECT_EQ(next->LostRanks(), std::vector<int32_t>());
}

// What is refused leaves the context as it was: it can still be connected.
TEST(Context, WrongIntroductions) {
  MoeFabric fabric({.ranks = 3}, SmallConfig(3));
  const std::vector<Bytes> right = fabric.Introductions();
  const auto connect = [&](const std::vector<Bytes>& introductions) {
    return fabric.context(1).Connect(introductions, fabric.In(1000));
  };
  std::vector<Bytes> wrong = right;
  std::swap(wrong[0], wrong[2]);
  EXPECT_EQ(MessageOf(connect(wrong)), "introductions[0] is that of rank 2: pass them in rank order");
  wrong = right;
  wrong[2] = right[0];
  EXPECT_EQ(MessageOf(connect(wrong)), "introductions[2] is that of rank 0: pass them in rank order");
  EXPECT_EQ(MessageOf(connect({right[0], right[1]})), "introductions: 2 given, and there are 3 ranks");
  EXPECT_EQ(MessageOf(connect({})), "introductions: 0 given, and there are 3 ranks");
  wrong = right;
  wrong.push_back(right[0]);
  EXPECT_EQ(MessageOf(connect(wrong)), "introductions: 4 given, and there are 3 ranks");

  for (const int32_t rank : {0, 1, 2}) {
    for (size_t length = 0; length < right[rank].size(); ++length) {
      wrong = right;
      wrong[rank].resize(length);
      EXPECT_NE(MessageOf(connect(wrong)), "") << "truncated to " << length;
    }
    for (size_t bit = 0; bit < 8 * right[rank].size(); ++bit) {
      wrong = right;
      wrong[rank][bit / 8] ^= std::byte{1} << bit % 8;
      EXPECT_NE(MessageOf(connect(wrong)), "") << "bit " << bit << " flipped";
    }
    wrong = right;
    wrong[rank].push_back(std::byte{0});
    EXPECT_NE(MessageOf(connect(wrong)), "");
  }
  EXPECT_EQ(fabric.context(1).channel(0), nullptr);
  fabric.Connect();
  std::vector<std::unique_ptr<PatternExchange>> all;
  for (int32_t rank = 0; rank < 3; ++rank) all.push_back(Submit(fabric, rank, Call(1)));
  EXPECT_TRUE(fabric.StepUntil([&] { return all[0]->ok() && all[1]->ok() && all[2]->ok(); }));
}

// Whoever changes an introduction makes its checksum anew.
TEST(Context, ForgedIntroductions) {
  const std::string_view secret = "the secret of this fabric";
  const auto key = FabricKey::Create(Secret::From(std::as_bytes(std::span(secret))).value()).value();
  MoeFabric fabric({.ranks = 2, .key = key}, SmallConfig(2));
  std::vector<Bytes> introductions = fabric.Introductions();
  const Bytes right = introductions[0];
  uint32_t magic = 0;
  std::memcpy(&magic, right.data(), sizeof(magic));
  const Frame frame = OpenFrame(magic, 0xffff, right, "introduction").value();
  for (size_t bit = 0; bit < 8 * frame.payload.size(); ++bit) {
    Bytes payload(frame.payload.begin(), frame.payload.end());
    payload[bit / 8] ^= std::byte{1} << bit % 8;
    introductions[0] = SealFrame(magic, frame.version, payload);
    EXPECT_NE(MessageOf(fabric.context(1).Connect(introductions, fabric.In(1000))), "") << "bit " << bit << " flipped";
  }
  fabric.Connect();
}

TEST(Context, AnotherConfigurationIsRefused) {
  MoeFabric fabric({.ranks = 2}, SmallConfig(2));
  MoeConfig config = SmallConfig(2);
  config.layout.shape.rank = 1;
  config.layout.shape.hidden = 16;
  MoeFabric other({.ranks = 2}, config);
  std::vector<Bytes> introductions = fabric.Introductions();
  introductions[1] = other.Introductions()[1];
  const Status status = fabric.context(0).Connect(introductions, fabric.In(1000));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.error().message.find("rank 1 has another expert-parallel configuration than rank 0"),
            std::string::npos);
}

TEST(Context, PeerThatIsNotThere) {
  MoeFabric fabric({.ranks = 2}, SmallConfig(2));
  fabric.nic(0)->faults().never_ready = {0};
  const Status status = fabric.context(0).Connect(fabric.Introductions(), fabric.In(1000));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(status.error().message.find("rank1"), std::string::npos) << status.error().message;
}

class ContextClose : public ::testing::TestWithParam<std::tuple<Transport, Mapping>> {
 protected:
  FabricOptions Options(int32_t ranks) const {
    FabricOptions options;
    options.ranks = ranks;
    options.transport = std::get<0>(GetParam());
    options.mapping = std::get<1>(GetParam());
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, ContextClose,
                         ::testing::Combine(::testing::Values(Transport::kSimulated, Transport::kLocal),
                                            ::testing::Values(Mapping::kNone, Mapping::kAll)));

TEST_P(ContextClose, BeforeAnything) {
  MoeFabric fabric(Options(2), SmallConfig(2));
  EXPECT_TRUE(fabric.context(0).Close(fabric.In(0)));
  fabric.Connect();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(fabric.context(1).Close(fabric.In(0)));
  EXPECT_EQ(fabric.context(1).error()->code, ErrorCode::kCancelled);
  const auto late = Submit(fabric, 1, Call(1));
  EXPECT_EQ(late->error().message, "the expert-parallel context was closed");
}

// In every state that a few exchanges go through.
TEST_P(ContextClose, AtAnyMoment) {
  for (const bool inline_executors : {true, false}) {
    for (int steps = 0; steps < 40; ++steps) {
      FabricOptions options = Options(3);
      options.seed = steps;
      options.inline_executors = inline_executors;
      std::vector<std::unique_ptr<PatternExchange>> all;
      MoeFabric fabric(options, SmallConfig(3));
      fabric.Connect();
      for (uint64_t serial = 1; serial <= 12; ++serial) {
        for (int32_t rank = 0; rank < 3; ++rank) all.push_back(Submit(fabric, rank, Call(serial), serial % 2));
      }
      for (int i = 0; i < steps; ++i) fabric.StepAny();
      const int32_t closes = steps % 3;
      if (inline_executors) {
        EXPECT_TRUE(CloseStepping(fabric, closes));
        for (size_t i = closes; i < all.size(); i += 3) EXPECT_EQ(all[i]->finishes(), 1);
        // Nobody is told: the others find out by their deadlines.
        fabric.Sleep(2'000'000);
        fabric.StepAll(100);
        fabric.Sleep(2'000'000);
        fabric.StepAll(100);
        for (const auto& each : all) EXPECT_EQ(each->finishes(), 1);
      }
    }
  }
}

TEST_P(ContextClose, AfterTheEngine) {
  for (const int steps : {0, 3, 10}) {
    std::vector<std::unique_ptr<PatternExchange>> all;
    MoeFabric fabric(Options(3), SmallConfig(3));
    fabric.Connect();
    for (uint64_t serial = 1; serial <= 12; ++serial) {
      for (int32_t rank = 0; rank < 3; ++rank) all.push_back(Submit(fabric, rank, Call(serial)));
    }
    fabric.StepAll(steps);
    EXPECT_TRUE(fabric.engine(1).Close(fabric.In(1'000'000)).has_value());
    for (size_t i = 1; i < all.size(); i += 3) EXPECT_EQ(all[i]->finishes(), 1);
    const auto late = Submit(fabric, 1, Call(20));
    EXPECT_FALSE(late->ok());
    EXPECT_TRUE(fabric.context(1).Close(fabric.In(0)));
    // Peers of one process store into each other's memory: the others go on until they are closed.
    fabric.StepAll(100);
    fabric.Close();
    fabric.DestroyContext(1);
  }
}

// A context that one rank closes leaves the others to name it.
TEST_P(ContextClose, OneRankLeavesEarly) {
  std::vector<std::unique_ptr<PatternExchange>> all;
  MoeFabric fabric(Options(3), SmallConfig(3));
  fabric.Connect();
  for (int32_t rank = 0; rank < 3; ++rank) all.push_back(Submit(fabric, rank, Call(1)));
  EXPECT_TRUE(fabric.StepUntil([&] { return all[0]->ok() && all[1]->ok() && all[2]->ok(); }));
  EXPECT_TRUE(CloseStepping(fabric, 2));
  const auto first = Submit(fabric, 0, Call(2)), second = Submit(fabric, 1, Call(2));
  fabric.StepAll(100);
  fabric.Sleep(2'000'000);
  fabric.StepAll(100);
  for (const auto* each : {first.get(), second.get()}) {
    EXPECT_EQ(each->error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(each->error().message.find("rank(s) 2;"), std::string::npos) << each->error().message;
  }
}

}  // namespace
}  // namespace jax_fabric::moe
