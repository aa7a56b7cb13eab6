// Whoever drives a domain may sleep until something comes.
#include <gtest/gtest.h>
#include <poll.h>
#include <time.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/engine/domains/connectx/connectx_domain.h"
#include "csrc/engine/domains/connectx/connectx_fabric.h"
#include "csrc/engine/transfer_engine.h"

namespace jax_fabric {
namespace {

using SteadyTime = std::chrono::steady_clock;
using conformance::SetVerbsFaults;

constexpr uint64_t kBytes = 4096;
constexpr int kPatienceMs = 20'000;

// A domain, what it has reported, and memory that others may write to.
struct Side {
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
  std::unique_ptr<Domain> domain = CreateConnectXDomain(conformance::ConnectXFabric::DoubleOptions()).value();
  MemoryRegion region = domain->RegisterMemory(memory.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite).value();
  size_t writes = 0, immediates = 0;

  void Poll() {
    Completion found[32];
    const size_t count = domain->Poll(found);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(found[i].code, ErrorCode::kOk) << domain->last_error();
      writes += found[i].kind == CompletionKind::kWrite;
      immediates += found[i].kind == CompletionKind::kImmediate;
    }
  }
  // False: nothing has become readable.
  bool Sleep(int milliseconds) {
    pollfd readable = {domain->wait_fd(), POLLIN, 0};
    return poll(&readable, 1, milliseconds) == 1;
  }
};

bool Until(const std::function<bool()>& holds, const std::function<void()>& step) {
  const auto end = SteadyTime::now() + std::chrono::milliseconds(kPatienceMs);
  while (!holds()) {
    if (SteadyTime::now() > end) return false;
    step();
  }
  return true;
}

class ConnectXSleep : public ::testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetVerbsFaults({.completion_delay_us = GetParam()})); }
  void TearDown() override { ASSERT_TRUE(SetVerbsFaults({})); }

  void Connect(Side& from, Side& to) {
    write_.peer = from.domain->AddPeer(to.domain->address()).value();
    EXPECT_FALSE(from.domain->ArmWait()) << "it connects";
    const auto ready = [&] { return from.domain->peer_state(write_.peer) == PeerState::kReady; };
    ASSERT_TRUE(Until(ready, [&] { from.Poll(), to.Poll(); }));
    write_.source = from.memory.data();
    write_.local_key = from.region.local_key;
    write_.length = 64;
    write_.remote_address = to.region.remote_address;
    write_.remote_key = to.region.remote_key;
    write_.immediate = 7;
  }

  WriteRequest write_;
};

// Also completions that the device shows some time after the payload is there.
INSTANTIATE_TEST_SUITE_P(Delays, ConnectXSleep, ::testing::Values(0, 3'000));

TEST_P(ConnectXSleep, WhatComesWakesTheSleeper) {
  Side writer, sleeper;
  ASSERT_NO_FATAL_FAILURE(Connect(writer, sleeper));
  for (size_t round = 1; round <= 100; ++round) {
    // Heartbeats may wake it at any time, which is no harm.
    ASSERT_TRUE(Until([&] { return sleeper.domain->ArmWait(); }, [&] { sleeper.Poll(); }));
    ASSERT_EQ(writer.domain->PostWrite(write_), PostResult::kPosted);
    const auto came = [&] { return sleeper.immediates == round; };
    ASSERT_TRUE(Until(came, [&] {
      EXPECT_TRUE(sleeper.Sleep(kPatienceMs)) << "round " << round;
      sleeper.Poll();
      while (!came() && !sleeper.domain->ArmWait()) sleeper.Poll();
    }));
    // The writer may sleep for its completion.
    ASSERT_TRUE(Until([&] { return writer.writes == round; },
                      [&] {
                        EXPECT_TRUE(!writer.domain->ArmWait() || writer.Sleep(kPatienceMs)) << "round " << round;
                        writer.Poll();
                      }));
  }
}

TEST_P(ConnectXSleep, WhatCameBeforeIsNotSleptOver) {
  Side writer, sleeper;
  ASSERT_NO_FATAL_FAILURE(Connect(writer, sleeper));
  for (size_t round = 1; round <= 20; ++round) {
    ASSERT_EQ(writer.domain->PostWrite(write_), PostResult::kPosted);
    // Then it is in the other side's queue, too, or soon will be.
    ASSERT_TRUE(Until([&] { return writer.writes == round; }, [&] { writer.Poll(); }));
    const bool armed = sleeper.domain->ArmWait();
    EXPECT_TRUE(GetParam() > 0 || !armed);
    EXPECT_TRUE(!armed || sleeper.Sleep(kPatienceMs));
    ASSERT_TRUE(Until([&] { return sleeper.immediates == round; }, [&] { sleeper.Poll(); }));
  }
}

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

TEST(ConnectXWorker, SleepsWhileNothingHappens) {
  ASSERT_TRUE(SetVerbsFaults({}));
  auto engine = TransferEngine::Create({}).value();
  std::vector<DomainGroup*> groups;
  for (int i = 0; i < 2; ++i) {
    GroupOptions options;
    options.name = fmt::format("group{}", i);
    options.domains.push_back(CreateConnectXDomain(conformance::ConnectXFabric::DoubleOptions()).value());
    groups.push_back(engine->AddGroup(std::move(options)).value());
  }
  const Deadline deadline = Deadline::After(SteadyClock::Get(), int64_t{kPatienceMs} * 1000);
  const PeerHandle peer = groups[0]->AddPeer(groups[1]->Address()).value();
  ASSERT_TRUE(groups[0]->WaitPeers({&peer, 1}, deadline).has_value());
  // A worker that spins takes as much as there is; under load, less than the time that goes by.
  const double before = CpuSeconds();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_LT(CpuSeconds() - before, 0.6);
  EXPECT_TRUE(groups[0]->PeerStatus(peer).has_value()) << "heartbeats go on";
  EXPECT_TRUE(engine->Close(deadline).has_value());
}

}  // namespace
}  // namespace jax_fabric
