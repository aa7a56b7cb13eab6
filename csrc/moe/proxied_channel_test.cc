// The host's part of channels whose kernels run on a device, with threads that do to memory what kernels do. For
// ThreadSanitizer and AddressSanitizer.
#include "csrc/moe/proxied_channel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/kernels/message_fault.h"
#include "csrc/moe/peer_connector.h"
#include "csrc/moe/testing/moe_fabric.h"

namespace jax_fabric::moe {
namespace {

using kernels::ChannelSignals;
using kernels::SignalError;

Deadline In(int64_t milliseconds) { return Deadline::After(SteadyClock::Get(), milliseconds * 1000); }

// A rank with an engine of its own, whose device is the test.
class Rank {
 public:
  // Ranks of one node, `node_size` each, have no need of the host.
  static std::unique_ptr<Rank> Make(int32_t rank, MoeConfig config, int32_t node_size) {
    config.layout.shape.rank = rank;
    EngineOptions options;
    options.idle = {.mode = IdleMode::kAdaptive, .spin_us = 5, .yield_us = 50};
    auto engine = TransferEngine::Create(options).value();
    GroupOptions group_options;
    group_options.name = "rank" + std::to_string(rank);
    group_options.domains.push_back(CreateLocalDomain({}).value());
    DomainGroup* group = engine->AddGroup(std::move(group_options)).value();
    return std::unique_ptr<Rank>(new Rank(config, std::move(engine), group, node_size));
  }

  ~Rank() { Leave(); }

  // The engine ends, as that of a process that is gone.
  void Leave() {
    if (engine_ == nullptr) return;
    for (const auto& channel : channels_) {
      channel->StopPolling();
      channel->Close();
      while (!channel->Quiet()) std::this_thread::yield();
    }
    EXPECT_TRUE(engine_->Close(In(20'000)).has_value());
    channels_.clear();
    connector_.reset();
    engine_.reset();
  }

  ProxiedChannel& channel(int32_t index) { return *channels_[index]; }
  Bytes Introduction() const { return connector_->Introduction({}).value(); }
  void Connect(const std::vector<Bytes>& introductions) {
    const Status connected = connector_->Connect(introductions, In(20'000));
    ASSERT_TRUE(connected.has_value()) << connected.error().message;
    std::vector<uint8_t> through_host;
    for (int32_t rank = 0; rank < ranks(); ++rank) through_host.push_back(IsThroughHost(rank));
    for (int32_t index = 0; index < config_.channels; ++index) {
      channels_.push_back(
          ProxiedChannel::Create(index, config_, connector_->table(), through_host, group_,
                                 {&signals_[index], &message_bytes(index, 0), &missing_[index * ranks()],
                                  has_device_lines() ? &device_lines_[index] : nullptr})
              .value());
    }
    for (const auto& channel : channels_) channel->StartPolling();
  }

  // ---- What kernels do

  static std::byte ByteOf(int32_t source, int32_t target, int64_t sequence, int64_t i) {
    return static_cast<std::byte>(source * 31 + target * 7 + sequence * 13 + i);
  }
  static int64_t LengthOf(int32_t source, int32_t target, int64_t sequence, int64_t slot_bytes) {
    return (source * 977 + target * 131 + sequence * 4093) % (slot_bytes + 1);
  }

  void Pack(int32_t channel, int64_t sequence) {
    for (int32_t target = 0; target < ranks(); ++target) {
      if (!IsThroughHost(target)) continue;
      std::byte* slot = connector_->staging().data() + Offset(channel, target, sequence);
      message_bytes(channel, target) = LengthOf(me(), target, sequence, config_.layout.SlotBytes());
      for (int64_t i = 0; i < message_bytes(channel, target); ++i) slot[i] = ByteOf(me(), target, sequence, i);
    }
  }
  void Post(int32_t channel, int64_t sequence) {
    std::atomic_ref(signals_[channel].posted.sequence).store(sequence, std::memory_order_release);
  }
  // False: stopped, or late.
  bool Wait(int32_t channel, int64_t sequence, int64_t patience_ms = 30'000) {
    const Deadline deadline = In(patience_ms);
    while (std::atomic_ref(host(channel).done).load(std::memory_order_acquire) < sequence) {
      if (std::atomic_ref(host(channel).stop).load(std::memory_order_relaxed) != 0) return false;
      if (deadline.Passed(SteadyClock::Get())) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Waits until kernels would end their waits.
  bool IsStopped(int32_t channel) {
    const Deadline deadline = In(30'000);
    while (!deadline.Passed(SteadyClock::Get())) {
      if (std::atomic_ref(host(channel).stop).load(std::memory_order_relaxed) != 0) return true;
      std::this_thread::yield();
    }
    return false;
  }
  // While it waited for rank `source`.
  void SayStopped(int32_t channel, int64_t sequence, int32_t source) {
    Say(channel, sequence, SignalError::kStopped, source);
  }
  void Say(int32_t channel, int64_t sequence, SignalError error, int32_t source, int64_t detail = 0) {
    signals_[channel].error.error = error;
    signals_[channel].error.source = source;
    signals_[channel].error.detail = detail;
    std::atomic_ref(signals_[channel].error.sequence).store(sequence, std::memory_order_release);
  }
  int64_t CountWrongBytes(int32_t channel, int64_t sequence) const {
    int64_t wrong = 0;
    for (int32_t source = 0; source < ranks(); ++source) {
      if (!IsThroughHost(source)) continue;
      const std::byte* slot = connector_->memory().data() + Offset(channel, source, sequence);
      const int64_t length = LengthOf(source, me(), sequence, config_.layout.SlotBytes());
      for (int64_t i = 0; i < length; ++i) wrong += slot[i] != ByteOf(source, me(), sequence, i);
    }
    return wrong;
  }
  void Exchange(int32_t channel, int64_t sequence) {
    Pack(channel, sequence);
    Post(channel, sequence);
    ASSERT_TRUE(Wait(channel, sequence)) << sequence;
    ASSERT_EQ(CountWrongBytes(channel, sequence), 0) << sequence;
  }

  // The first error of a channel, once there is one.
  std::string ErrorOf(int32_t channel, int64_t patience_ms = 30'000) {
    const Deadline deadline = In(patience_ms);
    while (channels_[channel]->error() == nullptr && !deadline.Passed(SteadyClock::Get())) std::this_thread::yield();
    return channels_[channel]->error() == nullptr ? "" : channels_[channel]->error()->message;
  }

  ChannelSignals& signals(int32_t channel) { return signals_[channel]; }
  uint8_t& missing(int32_t channel, int32_t rank) { return missing_[channel * ranks() + rank]; }
  int64_t& message_bytes(int32_t channel, int32_t rank) { return message_bytes_[channel * ranks() + rank]; }
  const MoeConfig& config() const { return config_; }

  bool IsOfTheNodeOf(int32_t rank) const { return rank / node_size_ == me() / node_size_; }

 private:
  Rank(const MoeConfig& config, std::unique_ptr<TransferEngine> engine, DomainGroup* group, int32_t node_size)
      : config_(config),
        node_size_(node_size),
        engine_(std::move(engine)),
        group_(group),
        connector_(std::make_unique<PeerConnector>(config_, group)),
        signals_(config.channels),
        device_lines_(config.channels),
        message_bytes_(config.channels * config.layout.shape.ranks),
        missing_(config.channels * config.layout.shape.ranks) {
    const int64_t bytes = config.channels * config.layout.ChannelBytes();
    EXPECT_TRUE(connector_->Prepare({.memory_bytes = bytes, .staging_bytes = bytes, .map_peers = false}).has_value());
  }
  // Where the host tells kernels: half of the ranks have memory of the device for that.
  bool has_device_lines() const { return me() % 2 == 1; }
  HostLine::Words& host(int32_t channel) {
    return has_device_lines() ? device_lines_[channel] : signals_[channel].host;
  }
  int32_t me() const { return config_.layout.shape.rank; }
  int32_t ranks() const { return config_.layout.shape.ranks; }
  bool IsPeer(int32_t rank) const { return rank != me() && !config_.IsAbsent(rank); }
  bool IsThroughHost(int32_t rank) const { return IsPeer(rank) && !IsOfTheNodeOf(rank); }
  int64_t Offset(int32_t channel, int32_t rank, int64_t sequence) const {
    return config_.ChannelOffset(channel) + config_.layout.SlotOffset(rank, sequence);
  }

  const MoeConfig config_;
  const int32_t node_size_;
  std::unique_ptr<TransferEngine> engine_;
  DomainGroup* group_;
  std::unique_ptr<PeerConnector> connector_;
  std::vector<ChannelSignals> signals_;
  std::vector<HostLine::Words> device_lines_;
  std::vector<int64_t> message_bytes_;  // [channels, ranks]
  std::vector<uint8_t> missing_;        // [channels, ranks]
  std::vector<std::unique_ptr<ProxiedChannel>> channels_;
};

class ProxiedChannelTest : public ::testing::Test {
 protected:
  // `absent`: as in the configuration; those have no part in ranks_.
  void Start(int32_t ranks, const std::vector<uint8_t>& absent = {}, int32_t node_size = 1) {
    MoeConfig config = testing::SmallConfig(ranks);
    config.timeout_us = 10'000'000;
    config.absent = absent;
    std::vector<Bytes> introductions(ranks);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      if (config.IsAbsent(rank)) continue;
      ranks_.push_back(Rank::Make(rank, config, node_size));
      introductions[rank] = ranks_.back()->Introduction();
    }
    for (const auto& rank : ranks_) rank->Connect(introductions);
  }
  void OnEachRank(const std::function<void(Rank&)>& body) {
    std::vector<std::thread> threads;
    for (const auto& rank : ranks_) threads.emplace_back([&] { body(*rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(ProxiedChannelTest, MessagesOfAnyLengthArriveBeforeDone) {
  Start(3);
  OnEachRank([](Rank& rank) {
    for (int64_t sequence = 1; sequence <= 200; ++sequence) rank.Exchange(0, sequence);
  });
}

TEST_F(ProxiedChannelTest, ChannelsDoNotWaitForEachOther) {
  Start(2);
  OnEachRank([](Rank& rank) {
    rank.Pack(0, 1);
    if (rank.config().layout.shape.rank == 0) rank.Post(0, 1);
    for (int64_t sequence = 1; sequence <= 20; ++sequence) rank.Exchange(1, sequence);
  });
}

TEST_F(ProxiedChannelTest, NothingIsDoneBeforeAllMessagesAreHere) {
  Start(3);
  ranks_[0]->Pack(0, 1);
  ranks_[0]->Post(0, 1);
  ranks_[1]->Pack(0, 1);
  ranks_[1]->Post(0, 1);
  EXPECT_FALSE(ranks_[0]->Wait(0, 1, 50));
  EXPECT_EQ(ranks_[0]->ErrorOf(0, 0), "");
  ranks_[2]->Exchange(0, 1);
  EXPECT_TRUE(ranks_[0]->Wait(0, 1));
  EXPECT_TRUE(ranks_[1]->Wait(0, 1));
}

TEST_F(ProxiedChannelTest, ALostRankEndsWaitsWithItsName) {
  Start(3);
  OnEachRank([](Rank& rank) { rank.Exchange(0, 1); });
  ranks_[0]->Pack(0, 2);
  ranks_[0]->Post(0, 2);
  ranks_[2]->Leave();
  EXPECT_FALSE(ranks_[0]->Wait(0, 2));
  const std::string error = ranks_[0]->ErrorOf(0);
  // Whoever notices first: the write to it that fails, or the engine that has lost it.
  EXPECT_NE(error.find("is lost"), std::string::npos) << error;
  EXPECT_TRUE(error.find("without rank 2") != std::string::npos || error.find("'rank2'") != std::string::npos) << error;
}

TEST_F(ProxiedChannelTest, AnAbsentRankIsNeitherWaitedForNorMissed) {
  Start(3, {0, 1, 0});
  OnEachRank([](Rank& rank) {
    for (int64_t sequence = 1; sequence <= 20; ++sequence) rank.Exchange(0, sequence);
  });
  ranks_[0]->missing(1, 1) = ranks_[0]->missing(1, 2) = 1;
  ranks_[0]->Say(1, 1, SignalError::kDeadline, 0);
  const std::string late = ranks_[0]->ErrorOf(1);
  EXPECT_NE(late.find("for rank(s) 2"), std::string::npos) << late;
  ranks_[1]->Leave();
  ranks_[0]->Pack(0, 21);
  ranks_[0]->Post(0, 21);
  EXPECT_FALSE(ranks_[0]->Wait(0, 21));
  const std::string lost = ranks_[0]->ErrorOf(0);
  EXPECT_TRUE(lost.find("without rank 2") != std::string::npos || lost.find("'rank2'") != std::string::npos) << lost;
}

// Ranks of one node store into each other's memory: the host has to do with the others only.
TEST_F(ProxiedChannelTest, RanksOfOneNodeDoNotNeedIt) {
  Start(3, {}, 2);
  OnEachRank([](Rank& rank) {
    for (int64_t sequence = 1; sequence <= 200; ++sequence) rank.Exchange(0, sequence);
  });
  // Whoever waits for a rank of its node hears of its loss from the host.
  ranks_[0]->Pack(0, 201);
  ranks_[0]->Post(0, 201);
  ranks_[2]->Pack(0, 201);
  ranks_[2]->Post(0, 201);
  EXPECT_TRUE(ranks_[0]->Wait(0, 201));
  ranks_[1]->Leave();
  EXPECT_TRUE(ranks_[0]->IsStopped(0));
  ranks_[0]->SayStopped(0, 201, 1);
  const std::string error = ranks_[0]->ErrorOf(0);
  EXPECT_NE(error.find("rank 0 cannot go on without rank 1, which is lost"), std::string::npos) << error;
}

// Of several that are gone, the one that kernels waited for is named.
TEST_F(ProxiedChannelTest, TheRankThatKernelsWaitedForIsNamed) {
  Start(4, {}, 2);
  OnEachRank([](Rank& rank) { rank.Exchange(0, 1); });
  ranks_[0]->Leave();
  ranks_[3]->Leave();
  EXPECT_TRUE(ranks_[2]->IsStopped(0));
  ranks_[2]->SayStopped(0, 2, 3);
  const std::string error = ranks_[2]->ErrorOf(0);
  EXPECT_NE(error.find("rank 2 cannot go on without rank 3, which is lost"), std::string::npos) << error;
}

// A rank whose device cannot go on tells the others why, wherever they wait for it: long before their deadlines.
TEST_F(ProxiedChannelTest, OthersHearWhyARankHasGivenUp) {
  for (const int node_size : {1, 2, 4}) {
    SCOPED_TRACE(node_size);
    Start(4, {}, node_size);
    if (node_size < 4) OnEachRank([](Rank& rank) { rank.Exchange(0, 1); });
    for (const int rank : {0, 1, 3}) {
      ranks_[rank]->Pack(0, 2);
      ranks_[rank]->Post(0, 2);
    }
    ranks_[2]->Say(0, 2, SignalError::kMessage, 1, static_cast<int64_t>(kernels::MessageFault::kSignature));
    const std::string cause = ranks_[2]->ErrorOf(0);
    for (const int rank : {0, 1, 3}) {
      EXPECT_TRUE(ranks_[rank]->IsStopped(0));
      if (ranks_[rank]->IsOfTheNodeOf(2)) ranks_[rank]->SayStopped(0, 2, 2);
      EXPECT_EQ(
          ranks_[rank]->ErrorOf(0),
          fmt::format("moe (channel 0): rank {} cannot go on without rank 2, which has given up: {}", rank, cause));
      EXPECT_EQ(ranks_[rank]->ErrorOf(1, 0), "") << "the other channel goes on";
    }
    ranks_.clear();
  }
}

// As long as nothing is wanted of it: at the end of a program ranks leave when they are through.
TEST_F(ProxiedChannelTest, ARankMayLeaveWhenItIsThrough) {
  for (const int32_t node_size : {1, 2, 3}) {
    Start(3, {}, node_size);
    // On one node all, they tell each other themselves.
    OnEachRank([&](Rank& rank) {
      for (int64_t sequence = 1; sequence <= 5 && node_size < 3; ++sequence) rank.Exchange(0, sequence);
    });
    ranks_[1]->Leave();
    EXPECT_TRUE(ranks_[0]->IsStopped(0));
    EXPECT_EQ(ranks_[0]->ErrorOf(0, 50), "");
    EXPECT_EQ(ranks_[2]->ErrorOf(0, 50), "");
    // The next call wants it, wherever it was.
    ranks_[0]->Pack(0, 6);
    ranks_[0]->Post(0, 6);
    if (node_size > 1) ranks_[0]->SayStopped(0, 6, 1);
    EXPECT_NE(ranks_[0]->ErrorOf(0), "");
    EXPECT_NE(ranks_[0]->channel(0).error()->message.find("is lost"), std::string::npos);
    ranks_.clear();
  }
}

// Whoever asks after a kernel has ended hears what it has said, also before the worker has come by.
TEST_F(ProxiedChannelTest, ErrorsAreThereWhenKernelsHaveEnded) {
  Start(2);
  ranks_[0]->channel(0).StopPolling();
  EXPECT_EQ(ranks_[0]->channel(0).error(), nullptr);
  ranks_[0]->SayStopped(0, 1, 0);
  ASSERT_NE(ranks_[0]->channel(0).error(), nullptr);
  EXPECT_NE(ranks_[0]->channel(0).error()->message.find("was stopped while it waited"), std::string::npos);
}

// Kernels that were recorded with peers tell the host in every epoch.
TEST_F(ProxiedChannelTest, NobodyIsLeftToSendTo) {
  Start(2, {0, 1});
  for (int64_t sequence = 1; sequence <= 3; ++sequence) ranks_[0]->Post(0, sequence);
  EXPECT_EQ(ranks_[0]->ErrorOf(0, 50), "");
}

TEST_F(ProxiedChannelTest, WordsForWhatTheDeviceSays) {
  struct Case {
    SignalError error;
    int32_t source;
    int64_t detail;
    const char* words;
  };
  const Case cases[] = {
      {SignalError::kDeadline, 1, 0, "exchange 7): rank 0 waited 10 s for any rank to tell"},
      {SignalError::kMessage, 1, static_cast<int64_t>(kernels::MessageFault::kSignature),
       "rank 0 cannot use the message of rank 1: the peer's call has another signature"},
      {SignalError::kCapacity, 1, 99, "99 rows were routed to the experts of rank 1, and capacity="},
      {SignalError::kElementCapacity, 3, 5, "element 3 of a batch has 5 rows more for rank 0 than capacity="},
      {SignalError::kRank, 0, 1, "called on rank 1 of the axis, and this device is rank 0"},
      {SignalError::kNotDone, 0, 0, "calls in flight at once need channels of their own"},
  };
  for (const Case& each : cases) {
    Start(2);
    Rank& rank = *ranks_[0];
    rank.Say(0, 7, each.error, each.source, each.detail);
    const std::string error = rank.ErrorOf(0);
    EXPECT_NE(error.find(each.words), std::string::npos) << error;
    EXPECT_EQ(rank.ErrorOf(1, 0), "") << "the other channel goes on";
    ranks_.clear();
  }
}

TEST_F(ProxiedChannelTest, SaysOnceThatACallHadNothingToEnd) {
  Start(2);
  Rank& rank = *ranks_[0];
  EXPECT_FALSE(rank.channel(0).TakeRefusal());
  auto& line = rank.signals(0).refused;
  for (int64_t count = 1; count <= 2; ++count) {
    line.ticket = 6 + count;
    std::atomic_ref(line.count).store(count, std::memory_order_release);
    const std::optional<Error> refusal = rank.channel(0).TakeRefusal();
    ASSERT_TRUE(refusal);
    EXPECT_NE(refusal->message.find(fmt::format("exchange {}): rank 0 was to end a call that was not started here, or "
                                                "has been done already",
                                                line.ticket)),
              std::string::npos)
        << refusal->message;
    EXPECT_FALSE(rank.channel(0).TakeRefusal());
  }
  EXPECT_EQ(rank.channel(0).error(), nullptr);
}

TEST_F(ProxiedChannelTest, RefusesLengthsThatNoSlotHas) {
  for (const int64_t bytes : {int64_t{-1}, testing::SmallConfig(2).layout.SlotBytes() + 1}) {
    Start(2);
    ranks_[0]->Pack(0, 1);
    ranks_[0]->message_bytes(0, 1) = bytes;
    ranks_[0]->Post(0, 1);
    EXPECT_FALSE(ranks_[0]->Wait(0, 1));
    const std::string error = ranks_[0]->ErrorOf(0);
    EXPECT_NE(error.find("the message to rank 1 has " + std::to_string(bytes)), std::string::npos) << error;
    ranks_.clear();
  }
}

}  // namespace
}  // namespace jax_fabric::moe
