// That the simulated fabric does misbehave, in each of its ways, and the same way again with the same seed.
#include "csrc/engine/domains/simulated/simulated_domain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/testing/virtual_clock.h"

namespace jax_fabric::simulated {
namespace {

// Two domains that know each other, a source of 0x11 at the first and a target of 0xa5 at the second.
class Pair {
 public:
  static constexpr uint64_t kBytes = 1 << 16;

  explicit Pair(const SimulatedDomainOptions& options, uint64_t seed = 1) : network(seed, clock) {
    a = std::make_unique<SimulatedDomain>(network, options);
    b = std::make_unique<SimulatedDomain>(network, options);
    source.assign(kBytes, std::byte{0x11});
    target.assign(kBytes, std::byte{0xa5});
    from = a->RegisterMemory(source.data(), kBytes, MemoryKind::kHost, Access::kLocalOnly).value();
    to = b->RegisterMemory(target.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite).value();
    peer = a->AddPeer(b->address()).value();
    back = b->AddPeer(a->address()).value();
    Run([&] { return a->peer_state(peer) == PeerState::kReady && b->peer_state(back) == PeerState::kReady; });
  }

  WriteRequest Write(uint64_t length, uint32_t immediate, uint64_t offset = 0) const {
    WriteRequest write;
    write.peer = peer;
    write.context = immediate;
    write.source = source.data() + offset;
    write.local_key = from.local_key;
    write.length = length;
    write.remote_address = to.remote_address + offset;
    write.remote_key = to.remote_key;
    write.immediate = immediate;
    return write;
  }
  void Post(uint64_t length, uint32_t immediate, uint64_t offset = 0) {
    ASSERT_EQ(a->PostWrite(Write(length, immediate, offset)), PostResult::kPosted) << a->last_error();
  }

  void Poll() {
    std::array<Completion, 16> completions;
    for (SimulatedDomain* domain : {a.get(), b.get()}) {
      if (domain == nullptr) continue;
      const size_t count = domain->Poll(completions);
      for (size_t i = 0; i < count; ++i) {
        (domain == a.get() ? at_a : at_b).push_back(completions[i]);
        if (completions[i].code != ErrorCode::kOk) errors.push_back(domain->last_error());
      }
    }
  }
  // From event to event, until the condition holds or a virtual second is over.
  bool Run(const std::function<bool()>& done) {
    const int64_t end = clock.NowNs() + 1'000'000'000;
    while (!done() && clock.NowNs() < end) {
      clock.AdvanceNs(std::max<int64_t>(1, network.NextEventNs().value_or(end) - clock.NowNs()));
      Poll();
    }
    return done();
  }
  void RunFor(int64_t microseconds) {
    const int64_t end = clock.NowNs() + microseconds * 1000;
    while (clock.NowNs() < end) {
      clock.AdvanceNs(std::clamp<int64_t>(network.NextEventNs().value_or(end) - clock.NowNs(), 1, 1000));
      Poll();
    }
  }
  bool Landed(uint64_t length, uint64_t offset = 0) const {
    return std::all_of(target.begin() + offset, target.begin() + offset + length,
                       [](std::byte each) { return each == std::byte{0x11}; });
  }
  std::vector<uint32_t> Immediates() const {
    std::vector<uint32_t> result;
    for (const Completion& each : at_b) {
      if (each.kind == CompletionKind::kImmediate) result.push_back(each.immediate);
    }
    return result;
  }
  std::vector<uint64_t> Contexts() const {
    std::vector<uint64_t> result;
    for (const Completion& each : at_a) {
      if (each.kind == CompletionKind::kWrite) result.push_back(each.context);
    }
    return result;
  }

  testing::VirtualClock clock;
  SimulatedNetwork network;
  std::unique_ptr<SimulatedDomain> a, b;
  std::vector<std::byte> source, target;
  MemoryRegion from, to;
  PeerId peer = 0, back = 0;
  std::vector<Completion> at_a, at_b;
  std::vector<std::string> errors;
};

SimulatedDomainOptions Wild() {
  SimulatedDomainOptions options;
  options.nic.jitter_ns = 100'000;
  options.nic.segment_bytes = 512;
  options.nic.completion_ns = 100'000;
  options.faults.loss_probability = 0.1;
  return options;
}

TEST(SimulatedDomain, PermutesWritesSegmentsAndCompletions) {
  Pair pair(Wild());
  for (uint32_t i = 0; i < 32; ++i) pair.Post(2048, i, i * 2048);
  size_t seen = 0;
  ASSERT_TRUE(pair.Run([&] {
    // Every immediate comes after the whole of its own payload.
    for (const auto immediates = pair.Immediates(); seen < immediates.size(); ++seen) {
      EXPECT_TRUE(pair.Landed(2048, immediates[seen] * 2048)) << immediates[seen];
    }
    return pair.Immediates().size() == 32 && pair.Contexts().size() == 32;
  }));
  std::vector<uint32_t> sorted(32);
  for (uint32_t i = 0; i < 32; ++i) sorted[i] = i;
  std::vector<uint32_t> immediates = pair.Immediates();
  EXPECT_NE(immediates, sorted);
  const auto contexts = pair.Contexts();
  EXPECT_NE(std::vector<uint32_t>(contexts.begin(), contexts.end()), immediates);
  std::sort(immediates.begin(), immediates.end());
  EXPECT_EQ(immediates, sorted);
  EXPECT_GT(pair.network.reordered_segments(), 0u);
  EXPECT_GT(pair.network.retransmissions(), 0u);
}

TEST(SimulatedDomain, TheSameSeedGivesTheSameRun) {
  const auto run = [](uint64_t seed) {
    Pair pair(Wild(), seed);
    for (uint32_t i = 0; i < 32; ++i) pair.Post(2048, i, i * 2048);
    pair.Run([&] { return pair.Immediates().size() == 32; });
    return std::pair(pair.Immediates(), pair.clock.NowNs());
  };
  EXPECT_EQ(run(5), run(5));
  std::set<std::vector<uint32_t>> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) orders.insert(run(seed).first);
  EXPECT_EQ(orders.size(), 20u);
}

TEST(SimulatedDomain, SuccessMayComeBeforeThePayload) {
  SimulatedDomainOptions options;
  options.nic.latency_ns = 50'000;
  options.faults.early_completion_probability = 1;
  Pair pair(options);
  pair.Post(1000, 3);
  ASSERT_TRUE(pair.Run([&] { return pair.Contexts().size() == 1; }));
  EXPECT_FALSE(pair.Landed(1));
  // The source is free to be used again.
  std::fill(pair.source.begin(), pair.source.end(), std::byte{0x77});
  ASSERT_TRUE(pair.Run([&] { return pair.Immediates().size() == 1; }));
  EXPECT_TRUE(pair.Landed(1000));
}

TEST(SimulatedDomain, SuccessMayComeLongAfterThePayload) {
  SimulatedDomainOptions options;
  options.nic.completion_ns = 500'000'000;
  Pair pair(options);
  pair.Post(1000, 3);
  ASSERT_TRUE(pair.Run([&] { return pair.Immediates().size() == 1; }));
  EXPECT_TRUE(pair.Contexts().empty());
  ASSERT_TRUE(pair.Run([&] { return pair.Contexts().size() == 1; }));
}

TEST(SimulatedDomain, SaysAgainInBursts) {
  SimulatedDomainOptions options;
  options.faults.again_probability = 0.3;
  options.faults.again_burst = 4;
  Pair pair(options);
  int again = 0, longest = 0, run = 0;
  for (uint32_t i = 0; i < 200; ++i) {
    const bool full = pair.a->PostWrite(pair.Write(8, i)) == PostResult::kAgain;
    run = full ? run + 1 : 0;
    again += full;
    longest = std::max(longest, run);
    pair.RunFor(3);
  }
  EXPECT_GT(again, 50);
  EXPECT_LT(again, 180);
  EXPECT_GE(longest, 4);
  EXPECT_EQ(pair.Immediates().size(), 200u - again);
}

TEST(SimulatedDomain, AFailedWriteShowsItsImmediateAtMostOnce) {
  std::set<size_t> shown;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SimulatedDomainOptions options = Wild();
    options.faults.fail_post = 1;
    options.faults.fail_code = ErrorCode::kInternal;
    Pair pair(options, seed);
    for (uint32_t i = 0; i < 3; ++i) pair.Post(4096, i, i * 4096);
    ASSERT_TRUE(pair.Run([&] { return pair.Contexts().size() == 3; }));
    pair.RunFor(1000);
    size_t failed_shown = 0;
    for (const uint32_t immediate : pair.Immediates()) failed_shown += immediate == 1;
    shown.insert(failed_shown);
    EXPECT_EQ(pair.Immediates().size(), 2 + failed_shown);
    for (const Completion& each : pair.at_a) {
      if (each.kind != CompletionKind::kWrite) continue;
      EXPECT_EQ(each.code, each.context == 1 ? ErrorCode::kInternal : ErrorCode::kOk);
    }
  }
  EXPECT_EQ(shown, (std::set<size_t>{0, 1}));
}

TEST(SimulatedDomain, ADroppedCompletionComesWhenThePeerIsRemoved) {
  SimulatedDomainOptions options;
  options.faults.drop_completion_probability = 1;
  Pair pair(options);
  pair.Post(8, 1);
  ASSERT_TRUE(pair.Run([&] { return pair.Immediates().size() == 1; }));
  pair.RunFor(10'000);
  EXPECT_TRUE(pair.Contexts().empty());
  EXPECT_EQ(pair.a->DeregisterMemory(pair.from).error().code, ErrorCode::kFailedPrecondition);
  pair.a->RemovePeer(pair.peer);
  ASSERT_TRUE(pair.Run([&] { return pair.Contexts().size() == 1; }));
  EXPECT_EQ(pair.at_a.back().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(pair.a->DeregisterMemory(pair.from).has_value());
}

TEST(SimulatedDomain, ALinkThatComesBackInTimeLosesNothing) {
  Pair pair(Wild());
  pair.network.CutLink(*pair.a, *pair.b);
  for (uint32_t i = 0; i < 8; ++i) pair.Post(1024, i, i * 1024);
  pair.RunFor(1000);
  EXPECT_TRUE(pair.Immediates().empty());
  pair.network.RestoreLink(*pair.a, *pair.b);
  ASSERT_TRUE(pair.Run([&] { return pair.Immediates().size() == 8 && pair.Contexts().size() == 8; }));
  EXPECT_TRUE(pair.errors.empty());
}

TEST(SimulatedDomain, ALinkThatStaysDownLosesThePeerAndSaysWhy) {
  SimulatedDomainOptions options = Wild();
  options.faults.retries = 5;
  Pair pair(options);
  pair.network.CutLink(*pair.a, *pair.b);
  for (uint32_t i = 0; i < 8; ++i) pair.Post(1024, i, i * 1024);
  ASSERT_TRUE(pair.Run([&] { return pair.Contexts().size() == 8; }));
  EXPECT_EQ(pair.a->peer_state(pair.peer), PeerState::kFailed);
  ASSERT_EQ(pair.errors.size(), 9u);
  EXPECT_EQ(pair.errors[0], "the link is down: no answer after all retries");
  EXPECT_EQ(pair.errors[1], "flushed: the link is down: no answer after all retries");
  EXPECT_EQ(pair.a->PostWrite(pair.Write(8, 9)), PostResult::kRejected);
  EXPECT_EQ(pair.a->last_error(), pair.errors[0]);
}

TEST(SimulatedDomain, ADeadPeerIsNoticedByLease) {
  SimulatedDomainOptions options;
  options.faults.lease_ns = 300'000;
  Pair pair(options);
  const int64_t begin = pair.clock.NowNs();
  pair.b.reset();
  ASSERT_TRUE(pair.Run([&] { return pair.a->peer_state(pair.peer) == PeerState::kFailed; }));
  EXPECT_EQ(pair.clock.NowNs() - begin, 300'000);
  EXPECT_EQ(pair.errors, (std::vector<std::string>{"its domain is gone: lease ran out"}));
}

TEST(SimulatedDomain, WhatADeadSenderHadSentMayStillLand) {
  SimulatedDomainOptions options = Wild();
  options.faults.early_completion_probability = 0.5;
  options.nic.latency_ns = 10'000;
  Pair pair(options);
  for (uint32_t i = 0; i < 16; ++i) pair.Post(2048, i, i * 2048);
  pair.a.reset();
  std::fill(pair.source.begin(), pair.source.end(), std::byte{0x77});
  pair.RunFor(100'000);
  const auto immediates = pair.Immediates();
  EXPECT_GT(immediates.size(), 0u);
  EXPECT_LT(immediates.size(), 16u);
  for (const uint32_t each : immediates) EXPECT_TRUE(pair.Landed(2048, each * 2048));
}

// The sender has long forgotten the write; it is its peer that is lost, and no other one.
TEST(SimulatedDomain, ADeadPeerIsNoticedByAWriteThatHasSucceeded) {
  SimulatedDomainOptions options;
  options.nic.latency_ns = 50'000;
  options.faults.lease_ns = 0;
  options.faults.early_completion_probability = 1;
  Pair pair(options);
  auto third = std::make_unique<SimulatedDomain>(pair.network, options);
  const PeerId dying = pair.a->AddPeer(third->address()).value();
  ASSERT_TRUE(pair.Run([&] { return pair.a->peer_state(dying) == PeerState::kReady; }));
  WriteRequest write = pair.Write(8, 1);
  write.peer = dying;
  write.remote_key = third->RegisterMemory(pair.target.data(), Pair::kBytes, MemoryKind::kHost, Access::kRemoteWrite)
                         .value()
                         .remote_key;
  ASSERT_EQ(pair.a->PostWrite(write), PostResult::kPosted);
  ASSERT_TRUE(pair.Run([&] { return pair.Contexts().size() == 1; }));
  third.reset();
  ASSERT_TRUE(pair.Run([&] { return pair.a->peer_state(dying) == PeerState::kFailed; }));
  EXPECT_EQ(pair.a->peer_state(pair.peer), PeerState::kReady);
}

// A removed peer's writes have ended, and yet bytes come: what cancel has to wait for.
TEST(SimulatedDomain, AFailedWriteMayLandLate) {
  SimulatedDomainOptions options;
  options.nic.latency_ns = 10'000;
  options.faults.late_landing_probability = 1;
  Pair pair(options);
  uint64_t late = 0;
  pair.Post(2048, 1);
  pair.a->RemovePeer(pair.peer);
  pair.network.set_landing_observer([&](uint64_t begin, uint64_t end) { late += end - begin; });
  pair.RunFor(1000);
  EXPECT_EQ(late, 2048u);
  EXPECT_TRUE(pair.Immediates().empty()) << "the sender knows that it failed";
}

TEST(SimulatedDomain, ABadWriteBreaksAConnectionWhereAsked) {
  SimulatedDomainOptions options;
  options.faults.bad_write_breaks_peer = true;
  Pair pair(options);
  WriteRequest bad = pair.Write(8, 1);
  bad.remote_key ^= 1;
  ASSERT_EQ(pair.a->PostWrite(bad), PostResult::kPosted);
  ASSERT_TRUE(pair.Run([&] { return pair.errors.size() == 2; }));
  EXPECT_EQ(pair.a->peer_state(pair.peer), PeerState::kFailed);
  EXPECT_EQ(pair.errors[0], "the remote key is unknown there");
  EXPECT_EQ(pair.errors[1], "connection broken: the remote key is unknown there");
}

TEST(SimulatedDomain, LengthsBeyondFourGiBWithoutMemory) {
  SimulatedDomainOptions options;
  options.copy = false;
  options.nic.segment_bytes = uint64_t{1} << 30;
  Pair pair(options);
  const uint64_t length = (uint64_t{9} << 30) + 17;
  void* const nowhere = reinterpret_cast<void*>(uint64_t{1} << 45);
  WriteRequest write = pair.Write(0, 6);
  write.source = nowhere;
  write.length = length;
  write.local_key = pair.a->RegisterMemory(nowhere, length, MemoryKind::kHost, Access::kLocalOnly)->local_key;
  const MemoryRegion far = pair.b->RegisterMemory(nowhere, length, MemoryKind::kHost, Access::kRemoteWrite).value();
  write.remote_address = far.remote_address;
  write.remote_key = far.remote_key;
  uint64_t landed = 0;
  pair.network.set_landing_observer([&](uint64_t begin, uint64_t end) { landed += end - begin; });
  ASSERT_EQ(pair.a->PostWrite(write), PostResult::kPosted) << pair.a->last_error();
  ASSERT_TRUE(pair.Run([&] { return pair.Immediates().size() == 1; }));
  EXPECT_EQ(landed, length);
  write.length = length + 1;
  EXPECT_EQ(pair.a->PostWrite(write), PostResult::kRejected);
}

SimulatedDomainOptions Timed() {
  SimulatedDomainOptions options;
  options.nic.bytes_per_ns = 2;
  options.nic.post_ns = 100;
  options.nic.latency_ns = 1'000;
  return options;
}

// Whichever is longer: the port sends what was posted while the next request is.
TEST(SimulatedDomain, BandwidthAndPostingTakeTime) {
  for (const auto& [bytes, expected_ns] : {std::pair<uint64_t, int64_t>{2000, 100 + 10 * 1000}, {20, 10 * 100 + 10}}) {
    Pair pair(Timed());
    const int64_t begin = pair.clock.NowNs();
    for (uint32_t i = 0; i < 10; ++i) pair.Post(bytes, i, i * bytes);
    ASSERT_TRUE(pair.Run([&] { return pair.Immediates().size() == 10; }));
    EXPECT_EQ(pair.clock.NowNs() - begin, expected_ns + 1000);
  }
}

TEST(SimulatedDomain, HeldPostsLeaveLater) {
  Pair pair(Timed());
  const int64_t begin = pair.clock.NowNs();
  pair.a->HoldPosts(begin + 5'000);
  pair.Post(2000, 1);
  ASSERT_TRUE(pair.Run([&] { return !pair.Immediates().empty(); }));
  EXPECT_EQ(pair.clock.NowNs() - begin, 5'000 + 100 + 1000 + 1000);
}

// What several send to one at once comes in at the rate of its port, in the order in which it came.
TEST(SimulatedDomain, AReceivingPortTakesOneAfterTheOther) {
  Pair pair(Timed());
  SimulatedDomain third(pair.network, Timed());
  const MemoryRegion from =
      third.RegisterMemory(pair.source.data(), Pair::kBytes, MemoryKind::kHost, Access::kLocalOnly).value();
  const PeerId peer = third.AddPeer(pair.b->address()).value();
  ASSERT_TRUE(pair.Run([&] { return third.peer_state(peer) == PeerState::kReady; }));
  WriteRequest write = pair.Write(2000, 7);
  write.peer = peer;
  write.local_key = from.local_key;
  const int64_t begin = pair.clock.NowNs();
  // Posted first, with the longer way.
  third.HoldPosts(begin + 300);
  ASSERT_EQ(third.PostWrite(write), PostResult::kPosted);
  pair.Post(2000, 8, 2000);
  ASSERT_TRUE(pair.Run([&] { return pair.Immediates().size() == 2; }));
  EXPECT_EQ(pair.Immediates(), (std::vector<uint32_t>{8, 7}));
  EXPECT_EQ(pair.clock.NowNs() - begin, 100 + 1000 + 1000 + 1000);
}

// A short request does not wait for the end of a long one.
TEST(SimulatedDomain, InterleavedRequestsLeaveInTurn) {
  for (const bool interleaved : {false, true}) {
    SimulatedDomainOptions options = Timed();
    options.nic.segment_bytes = 200;
    options.nic.interleaved = interleaved;
    Pair pair(options);
    const int64_t begin = pair.clock.NowNs();
    pair.Post(20'000, 1);
    pair.Post(200, 2, 30'000);
    ASSERT_TRUE(pair.Run([&] { return pair.Immediates().size() == 2; }));
    EXPECT_EQ(pair.Immediates(), interleaved ? (std::vector<uint32_t>{2, 1}) : (std::vector<uint32_t>{1, 2}));
    EXPECT_EQ(pair.clock.NowNs() - begin, 100 + 10'000 + 100 + 1000);
  }
}

TEST(SimulatedDomain, CopiesNoMoreThanItIsTold) {
  SimulatedDomainOptions options;
  options.nic.segment_bytes = 64;
  options.copied_bytes = 100;
  Pair pair(options);
  pair.Post(256, 1);
  ASSERT_TRUE(pair.Run([&] { return !pair.Immediates().empty(); }));
  const auto written = [](std::byte byte) { return byte == std::byte{0x11}; };
  EXPECT_EQ(std::count_if(pair.target.begin(), pair.target.end(), written), 100);
  EXPECT_TRUE(std::all_of(pair.target.begin(), pair.target.begin() + 100, written));
}

TEST(SimulatedDomain, MapsMemoryOfItsNodeOnly) {
  for (const uint32_t node_size : {0, 1, 2}) {
    SimulatedDomainOptions options;
    options.mappable = true;
    options.node_size = node_size;
    Pair pair(options);
    void* const mapped = pair.a->MapRemote(pair.peer, pair.to.remote_address, pair.to.remote_key, Pair::kBytes);
    EXPECT_EQ(mapped, node_size == 1 ? nullptr : pair.target.data()) << node_size;
  }
}

}  // namespace
}  // namespace jax_fabric::simulated
