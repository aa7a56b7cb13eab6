// How groups find each other and lose each other: storms of connections over a lossy network, and peers that are
// restarted at any moment. Engines without threads, on a virtual clock.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/engine/domain_group.h"
#include "csrc/engine/testing/stepped_engine.h"

namespace jax_fabric {
namespace {

using testing::Outcome;
using testing::SteppedFabric;
using testing::SteppedRank;

simulated::SimulatedDomainOptions LossyConnections() {
  simulated::SimulatedDomainOptions nic;
  nic.nic = {.latency_ns = 1'000, .jitter_ns = 50'000, .handshake_ns = 20'000};
  nic.limits.max_outstanding = 512;
  nic.faults.handshake_loss_probability = 0.3;
  nic.faults.handshake_double_probability = 0.3;
  nic.faults.retransmit_ns = 100'000;
  return nic;
}

int64_t ResidentKiB() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

class StartUpStorm : public ::testing::TestWithParam<int> {};

TEST_P(StartUpStorm, EverybodyReachesEverybody) {
  const auto ranks = static_cast<size_t>(GetParam());
  SteppedFabric fabric(7);
  std::vector<SteppedRank*> all;
  for (size_t i = 0; i < ranks; ++i) all.push_back(&fabric.Add("r" + std::to_string(i), 1, LossyConnections()));
  std::vector<Bytes> addresses;
  for (SteppedRank* rank : all) addresses.push_back(rank->group->Address());
  std::vector<std::vector<PeerHandle>> peers(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    for (const Bytes& address : addresses) peers[i].push_back(all[i]->group->AddPeer(address).value());
  }
  const int64_t begin_ns = fabric.clock().NowNs();
  const auto ready = [&](size_t i) { return all[i]->group->WaitPeers(peers[i], Deadline{}).has_value(); };
  for (size_t i = 0; i < ranks; ++i) {
    while (!ready(i) && fabric.clock().NowNs() - begin_ns < 100'000'000) {
      fabric.clock().Advance(250);
      fabric.Step();
    }
    const Status status = all[i]->group->WaitPeers(peers[i], Deadline{});
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
  // Half of the attempts fail, each costs at most 1.6 ms.
  EXPECT_LT(fabric.clock().NowNs() - begin_ns, 40'000'000);
}

INSTANTIATE_TEST_SUITE_P(Ranks, StartUpStorm, ::testing::Values(64, 256));

// All at once, and each of the connections carries something.
TEST(StartUp, AThousandConnectToOne) {
  constexpr uint32_t kCallers = 1'000;
  SteppedFabric fabric(8);
  DomainGroup& one = *fabric.Add("one", 1, LossyConnections()).group;
  std::byte word{};
  const auto memory = one.RegisterMemory(&word, 1, MemoryKind::kHost, Access::kRemoteWrite).value();
  const RemoteMemory target = DomainGroup::ParseDescriptor(one.Describe(memory).value()).value();
  const uint32_t immediate = one.AllocateImmediates(1).value();
  Outcome all_came;
  ASSERT_TRUE(one.ExpectImmediate(immediate, kCallers, fabric.In(1'000'000), all_came.callback()).has_value());
  const Bytes address = one.Address();
  std::vector<Outcome> outcomes(kCallers);
  for (uint32_t i = 0; i < kCallers; ++i) {
    DomainGroup& caller = *fabric.Add("caller" + std::to_string(i), 1, LossyConnections()).group;
    // Posted as soon as the peer is ready.
    const BarrierTarget barrier{.peer = caller.AddPeer(address).value(), .target = &target, .immediate = immediate};
    const RequestOptions options{.deadline = fabric.In(1'000'000), .on_worker = outcomes[i].callback()};
    ASSERT_TRUE(caller.Barrier({&barrier, 1}, options).has_value());
  }
  const int64_t begin_ns = fabric.clock().NowNs();
  while (all_came.calls == 0 && fabric.clock().NowNs() - begin_ns < 100'000'000) {
    fabric.clock().Advance(250);
    fabric.Step();
  }
  ASSERT_TRUE(all_came.ok()) << all_came.error.message;
  EXPECT_LT(fabric.clock().NowNs() - begin_ns, 40'000'000);
  EXPECT_EQ(one.stray_immediates(), 0u);
}

// Two ranks that are restarted, one at a time or both.
class Restarts {
 public:
  static constexpr uint64_t kBytes = 8192;

  explicit Restarts(uint64_t seed) : random_(seed), fabric_(seed) {
    nic_.nic = {.latency_ns = 1'000, .jitter_ns = 20'000, .segment_bytes = 1024, .handshake_ns = 10'000};
    nic_.faults.handshake_loss_probability = 0.2;
    nic_.faults.handshake_double_probability = 0.2;
    nic_.faults.late_landing_probability = 0.5;
    nic_.faults.early_completion_probability = 0.3;
    nic_.faults.lease_ns = UpTo(1) == 0 ? 0 : 50'000;  // sometimes nobody tells of a death
    for (size_t side : {0, 1}) Boot(side);
    fabric_.network().set_landing_observer([this](uint64_t address, uint64_t end) {
      for (const Side& side : sides_) {
        const auto begin = reinterpret_cast<uint64_t>(side.target.data());
        EXPECT_FALSE(side.closed && address < begin + kBytes && end > begin) << "a write of a former peer lands";
      }
    });
    Introduce();
    WaitUntilReady();
  }

  void Round() {
    Start();
    fabric_.Step(static_cast<int>(UpTo(80)));  // before, during or after the transfers
    Restart();
    if (UpTo(2) == 0) {  // and once more, in the middle of the handshake
      fabric_.Step(static_cast<int>(UpTo(40)));
      Restart();
    }
    WaitUntilReady();
    Exchange();
  }

  // Nothing waits for ever, nothing ends twice.
  void ExpectEnded() {
    for (int i = 0; i < 20'000 && std::any_of(old_.begin(), old_.end(), [](auto& o) { return o->calls == 0; }); ++i) {
      fabric_.Step();
    }
    for (const auto& outcome : old_) ASSERT_EQ(outcome->calls, 1);
    old_.clear();
  }

  size_t regions(size_t side) const { return sides_[side].rank->nics[0]->regions(); }
  int former_refused() const { return former_refused_; }

 private:
  struct Side {
    SteppedRank* rank = nullptr;
    std::vector<std::byte> source, target;
    RegisteredMemory source_memory;
    RemoteMemory target_memory;  // as the other one has it
    uint32_t immediate = 0;
    PeerHandle other = 0;
    bool closed = false;  // nothing may land: the former peer is removed, there is no new one
  };

  int64_t UpTo(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }

  void Boot(size_t index) {
    Side& side = sides_[index];
    side.rank = &fabric_.Add(index == 0 ? "a" : "b", 1, nic_);
    DomainGroup& group = *side.rank->group;
    side.source.assign(kBytes, static_cast<std::byte>(++boots_));
    side.target.assign(kBytes, std::byte{0});
    side.source_memory =
        group.RegisterMemory(side.source.data(), kBytes, MemoryKind::kHost, Access::kLocalOnly).value();
    const auto target =
        group.RegisterMemory(side.target.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite).value();
    side.target_memory = DomainGroup::ParseDescriptor(group.Describe(target).value()).value();
    side.immediate = group.AllocateImmediates(1).value();
  }

  void Introduce() {
    for (size_t i : {0, 1}) {
      sides_[i].other = sides_[i].rank->group->AddPeer(sides_[1 - i].rank->group->Address()).value();
      sides_[i].closed = false;
    }
  }

  void WaitUntilReady() {
    for (Side& side : sides_) {
      const Status ready = side.rank->group->WaitPeers({{side.other}}, fabric_.In(100'000));
      ASSERT_TRUE(ready.has_value()) << ready.error().message;
    }
  }

  Result<Transfer> Write(size_t from, Outcome& outcome) {
    Side& side = sides_[from];
    const SingleWrite write{.peer = side.other,
                            .source = side.source_memory,
                            .target = &sides_[1 - from].target_memory,
                            .length = kBytes,
                            .immediate = sides_[1 - from].immediate};
    return side.rank->group->Write(write, {.deadline = fabric_.In(10'000), .on_worker = outcome.callback()});
  }

  void Start() {
    for (size_t from : {0, 1, 0, 1}) {
      old_.push_back(std::make_unique<Outcome>());
      ASSERT_TRUE(Write(from, *old_.back()).has_value());
    }
  }

  // Of side 0, of side 1, or of both at once. The bootstrap hands the new addresses round.
  void Restart() {
    const int64_t which = UpTo(2);
    const std::array<RemoteMemory, 2> former{sides_[0].target_memory, sides_[1].target_memory};
    for (size_t i : {0, 1}) {
      if (which == 2 || which == static_cast<int64_t>(i)) fabric_.Kill(*sides_[i].rank);
    }
    for (size_t i : {0, 1}) {
      Side& side = sides_[i];
      if (side.rank->group == nullptr) {
        Boot(i);
        continue;
      }
      side.rank->group->RemovePeer(side.other);
      fabric_.Step(2);
      // From here on its memory is its own.
      side.closed = true;
      std::fill(side.target.begin(), side.target.end(), std::byte{0xee});
      fabric_.Step(static_cast<int>(UpTo(100)));
      ASSERT_TRUE(
          std::all_of(side.target.begin(), side.target.end(), [](std::byte b) { return b == std::byte{0xee}; }));
    }
    Introduce();
    for (size_t i : {0, 1}) {
      if (which == 2 || which == static_cast<int64_t>(1 - i)) continue;
      // `i` was restarted, the other one was not: with the descriptors of before it gets nowhere.
      Side& survivor = sides_[1 - i];
      const SingleWrite stale{
          .peer = survivor.other, .source = survivor.source_memory, .target = &former[i], .length = 1};
      const auto refused = survivor.rank->group->Write(stale, {.deadline = fabric_.In(1'000)});
      ASSERT_FALSE(refused.has_value());
      ASSERT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
      ++former_refused_;
    }
  }

  void Exchange() {
    std::array<Outcome, 2> sent, received;
    for (size_t i : {0, 1}) {
      // What has come before the restart does not count: a new id, as for everything that is begun anew.
      sides_[i].immediate = sides_[i].rank->group->AllocateImmediates(1).value();
      ASSERT_TRUE(sides_[i]
                      .rank->group->ExpectImmediate(sides_[i].immediate, 1, fabric_.In(10'000), received[i].callback())
                      .has_value());
    }
    for (size_t i : {0, 1}) ASSERT_TRUE(Write(i, sent[i]).has_value());
    for (int i = 0; i < 20'000 && (sent[0].calls * sent[1].calls * received[0].calls * received[1].calls == 0); ++i) {
      fabric_.Step();
    }
    for (size_t i : {0, 1}) {
      ASSERT_TRUE(sent[i].ok()) << sent[i].error.message;
      ASSERT_TRUE(received[i].ok()) << received[i].error.message;
      ASSERT_EQ(sides_[i].target, sides_[1 - i].source);
    }
  }

  std::mt19937_64 random_;
  simulated::SimulatedDomainOptions nic_;
  std::array<Side, 2> sides_;
  int boots_ = 0;
  int former_refused_ = 0;
  std::vector<std::unique_ptr<Outcome>> old_;
  SteppedFabric fabric_;  // closes first: its requests end in what is above
};

TEST(Incarnations, RestartsAtAnyMoment) {
  int refused = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Restarts restarts(seed);
    for (int round = 0; round < 5; ++round) {
      restarts.Round();
      restarts.ExpectEnded();
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
    refused += restarts.former_refused();
  }
  EXPECT_GT(refused, 100);
}

TEST(Incarnations, AHundredRestartsLeaveNothingBehind) {
  Restarts restarts(1);
  [[maybe_unused]] int64_t before_kib = 0;  // not compared under AddressSanitizer
  for (int round = 0; round < 120; ++round) {
    if (round == 20) before_kib = ResidentKiB();
    restarts.Round();
    restarts.ExpectEnded();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(restarts.regions(0), 2u);
    ASSERT_EQ(restarts.regions(1), 2u);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(ResidentKiB() - before_kib, 4 * 1024);
#endif
}

TEST(Incarnations, TenThousandPeersComeAndGo) {
  SteppedFabric fabric;
  SteppedRank& a = fabric.Add("a");
  SteppedRank& b = fabric.Add("b");
  std::byte word{};
  const auto memory = b.group->RegisterMemory(&word, 1, MemoryKind::kHost, Access::kRemoteWrite).value();
  const RemoteMemory target = DomainGroup::ParseDescriptor(b.group->Describe(memory).value()).value();
  const uint32_t immediate = b.group->AllocateImmediates(1).value();
  const Bytes address = b.group->Address();
  constexpr int kCount = 10'000;
  std::vector<Outcome> outcomes(kCount);
  Outcome arrived;
  int unready = 0;
  PeerHandle last = 0;
  for (int i = 0; i < kCount; ++i) {
    const PeerHandle peer = a.group->AddPeer(address).value();
    ASSERT_TRUE(i == 0 || peer != last);
    last = peer;
    const BarrierTarget barrier{.peer = peer, .target = &target, .immediate = immediate};
    ASSERT_TRUE(a.group->Barrier({&barrier, 1}, {.deadline = fabric.In(1'000), .on_worker = outcomes[i].callback()})
                    .has_value());
    fabric.Step(i % 4);  // before it is ready, while it writes, after it
    a.group->RemovePeer(peer);
    fabric.Step(1);
    ASSERT_FALSE(a.group->PeerStatus(peer).has_value());
  }
  fabric.Step(10);
  uint32_t done = 0;
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.calls, 1);
    if (outcome.error.code == ErrorCode::kOk) {
      ++done;
    } else {
      ASSERT_EQ(outcome.error.code, ErrorCode::kUnavailable) << outcome.error.message;
      ++unready;
    }
  }
  EXPECT_GT(done, 2'000u);
  EXPECT_GT(unready, 2'000);
  ASSERT_TRUE(b.group->ExpectImmediate(immediate, done, fabric.In(100), arrived.callback()).has_value());
  fabric.Step(3);
  EXPECT_TRUE(arrived.ok()) << arrived.error.message;
}

}  // namespace
}  // namespace jax_fabric
