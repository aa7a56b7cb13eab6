// DomainGroup when requests and peers fail, stepped on a virtual clock over the simulated network.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "csrc/engine/domain_group.h"
#include "csrc/engine/testing/connected_pair.h"
#include "csrc/engine/testing/stepped_engine.h"

namespace jax_fabric {
namespace {

using simulated::SimulatedDomainOptions;
using testing::ConnectedPair;
using testing::Mentions;
using testing::Outcome;
using testing::PromptNic;
using testing::SteppedFabric;
using testing::SteppedRank;

TEST(Failures, OneOfManyFails) {
  for (const int failing : {0, 63, 127}) {
    for (const bool rejected : {false, true}) {
      ConnectedPair pair(failing + 1);
      std::vector<std::byte> from(128), to(128);
      pair.Memory(from, to);
      std::vector<uint64_t> indices(128);
      std::iota(indices.begin(), indices.end(), 0);
      auto& faults = pair.a.nics[0]->faults();
      (rejected ? faults.reject_post : faults.fail_post) = failing;
      PagedWrites pages{.peer = pair.to_b,
                        .page_length = 1,
                        .source = pair.source,
                        .source_pages = {indices, 1, 0},
                        .target = &pair.target,
                        .target_pages = {indices, 1, 0}};
      Outcome outcome;
      Transfer transfer =
          pair.a.group->WritePages(pages, {.deadline = pair.fabric.In(1000), .on_worker = outcome.callback()}).value();
      const Status status = transfer.Wait(pair.fabric.In(1000));
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(outcome.calls, 1);
      EXPECT_EQ(status.error().code, rejected ? ErrorCode::kInvalidArgument : ErrorCode::kDataLoss);
      EXPECT_TRUE(Mentions(status.error(), "peer 0 'b' over a:nic0")) << status.error().message;
      EXPECT_TRUE(Mentions(status.error(), "on request")) << status.error().message;
      EXPECT_TRUE(Mentions(status.error(), "of 128 done")) << status.error().message;
      EXPECT_TRUE(transfer.drained());
    }
  }
}

TEST(Failures, WrongKeyAndUnregisteredSource) {
  ConnectedPair pair;
  std::vector<std::byte> from(64), to(64);
  pair.Memory(from, to);
  pair.target.nics[0].remote_key += 1;
  const auto scatter = [&](const ScatterEntry& entry) {
    return pair.a.group->Scatter({&entry, 1}, {.deadline = pair.fabric.In(1000)}).value().Wait(pair.fabric.In(1000));
  };
  EXPECT_EQ(scatter(pair.Entry(64, 1)).error().code, ErrorCode::kPermissionDenied);
  ScatterEntry entry = pair.Entry(64, 1);
  entry.source = from.data() + 1;
  EXPECT_EQ(pair.a.group->PrepareScatter({&entry, 1}).error().code, ErrorCode::kOutOfRange);
  entry = pair.Entry(64, 1);
  entry.source_memory.id += 1;
  EXPECT_EQ(pair.a.group->PrepareScatter({&entry, 1}).error().code, ErrorCode::kNotFound);
  entry = pair.Entry(0, 1);
  entry.peer = 9;
  EXPECT_EQ(pair.a.group->PrepareScatter({&entry, 1}).error().code, ErrorCode::kNotFound);
}

TEST(Failures, TooLongForThePlan) {
  SimulatedDomainOptions small = PromptNic();
  small.limits.max_write_bytes = 10'000;
  small.limits.max_message_bytes = 100;
  small.limits.max_outstanding = small.limits.max_receives = 8;
  ConnectedPair pair(1, 1, small);
  std::vector<std::byte> from(50'000), to(50'000);
  pair.Memory(from, to);
  ScatterEntry entry = pair.Entry(0, 1);
  auto scatter = pair.a.group->PrepareScatter({&entry, 1}).value();
  Outcome sent;
  scatter->SetLength(0, 8192);
  ASSERT_TRUE(scatter->Post(pair.fabric.In(100), sent.callback()).has_value());
  pair.fabric.Step(5);
  EXPECT_TRUE(sent.ok());
  scatter->SetLength(0, 8193);
  EXPECT_EQ(scatter->Post(pair.fabric.In(100), {}).error().code, ErrorCode::kOutOfRange);
  scatter->SetLength(0, 1);
  scatter->SetLength(1, 1);
  EXPECT_EQ(scatter->Post(pair.fabric.In(100), {}).error().code, ErrorCode::kOutOfRange);
  entry.max_length = 50'000;
  scatter = pair.a.group->PrepareScatter({&entry, 1}).value();
  EXPECT_EQ(pair.b.group->ScatterImmediates(pair.to_a, 50'000).value(), 7u);
  scatter->SetLength(0, 50'000);
  Outcome again;
  ASSERT_TRUE(scatter->Post(pair.fabric.In(100), again.callback()).has_value());
  pair.fabric.Step(20);
  EXPECT_TRUE(again.ok());
  EXPECT_EQ(pair.b.group->stray_immediates(), 8u);
}

// Depth 8 and a peer that never takes anything: a thousand requests to another one go through.
TEST(Failures, SlowPeerBlocksNobody) {
  SteppedFabric fabric;
  SimulatedDomainOptions domain = PromptNic();
  domain.limits.max_outstanding = 8;
  SteppedRank& a = fabric.Add("a", 1, domain);
  SteppedRank& slow = fabric.Add("slow", 1, domain);
  SteppedRank& quick = fabric.Add("quick", 1, domain);
  const std::vector<PeerHandle> peers{a.group->AddPeer(slow.group->Address()).value(),
                                      a.group->AddPeer(quick.group->Address()).value()};
  ASSERT_TRUE(a.group->WaitPeers(peers, fabric.In(100)).has_value());
  for (const bool silent : {false, true}) {
    auto& faults = a.nics[0]->faults();
    faults.again.clear();
    (silent ? faults.silent : faults.again) = {0};
    std::byte word{};
    std::vector<RemoteMemory> targets;
    for (SteppedRank* rank : {&slow, &quick}) {
      const auto memory = rank->group->RegisterMemory(&word, 1, MemoryKind::kHost, Access::kRemoteWrite).value();
      targets.push_back(DomainGroup::ParseDescriptor(rank->group->Describe(memory).value()).value());
    }
    std::vector<Outcome> outcomes(1000);
    for (int i = 0; i < 1000; ++i) {
      const BarrierTarget target{peers[i % 2], &targets[i % 2], 1};
      ASSERT_TRUE(a.group->Barrier({&target, 1}, {.deadline = fabric.In(5000), .on_worker = outcomes[i].callback()}));
    }
    fabric.Step(1000);
    for (int i = 1; i < 1000; i += 2) ASSERT_TRUE(outcomes[i].ok()) << i << outcomes[i].error.message;
    for (int i = 0; i < 1000; i += 2) ASSERT_EQ(outcomes[i].calls, 0);
    fabric.Step(5000);
    for (int i = 0; i < 1000; i += 2) {
      ASSERT_EQ(outcomes[i].calls, 1);
      ASSERT_EQ(outcomes[i].error.code, ErrorCode::kDeadlineExceeded);
      ASSERT_TRUE(Mentions(outcomes[i].error, "waiting for peer 0 'slow'")) << outcomes[i].error.message;
    }
  }
}

TEST(Failures, LostPeerEndsItsRequestsAndNoOthers) {
  SteppedFabric fabric;
  SteppedRank& a = fabric.Add("a");
  SteppedRank& b = fabric.Add("b");
  SteppedRank& c = fabric.Add("c");
  const std::vector<PeerHandle> peers{a.group->AddPeer(b.group->Address()).value(),
                                      a.group->AddPeer(c.group->Address()).value()};
  ASSERT_TRUE(a.group->WaitPeers(peers, fabric.In(100)).has_value());
  std::byte word{};
  std::vector<ScatterEntry> entries(2);
  std::vector<RemoteMemory> targets(2);
  std::vector<uint32_t> immediates;
  for (int i = 0; i < 2; ++i) {
    DomainGroup* group = (i == 0 ? b : c).group;
    const auto memory = group->RegisterMemory(&word, 1, MemoryKind::kHost, Access::kRemoteWrite).value();
    targets[i] = DomainGroup::ParseDescriptor(group->Describe(memory).value()).value();
    immediates.push_back(group->AllocateImmediates(1).value());
    entries[i].peer = peers[i];
    entries[i].target = &targets[i];
    entries[i].immediate = immediates[i];
  }
  a.nics[0]->faults().again = {0};
  auto scatter = a.group->PrepareScatter(entries).value();
  Outcome sent, received;
  ASSERT_TRUE(c.group->ExpectImmediate(immediates[1], 1, fabric.In(1000), received.callback()).has_value());
  ASSERT_TRUE(scatter->Post(fabric.In(1000), sent.callback()).has_value());
  fabric.Step(3);
  a.nics[0]->KillPeer(0, "link down");
  fabric.Step(3);
  EXPECT_EQ(sent.calls, 1);
  EXPECT_EQ(sent.error.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Mentions(sent.error, "peer 0 'b'") && Mentions(sent.error, "link down")) << sent.error.message;
  EXPECT_TRUE(Mentions(sent.error, "1 of 2 done")) << sent.error.message;
  EXPECT_TRUE(received.ok());
  // And at once from now on; the other peer still gets its part.
  Outcome again;
  ASSERT_TRUE(scatter->Post(fabric.In(1000), again.callback()).has_value());
  fabric.Step(3);
  EXPECT_EQ(again.error.code, ErrorCode::kUnavailable);
  EXPECT_FALSE(a.group->WaitPeers(peers, fabric.In(10)).has_value());
}

TEST(Failures, DeadlineThenDrained) {
  ConnectedPair pair;
  std::vector<std::byte> from(64), to(64);
  pair.Memory(from, to);
  pair.a.nics[0]->faults().silent = {0};
  const ScatterEntry entry = pair.Entry(64, 1);
  auto scatter = pair.a.group->PrepareScatter({&entry, 1}).value();
  Outcome outcome;
  ASSERT_TRUE(scatter->Post(pair.fabric.In(50), outcome.callback()).has_value());
  pair.fabric.Step(100);
  EXPECT_EQ(outcome.calls, 1);
  EXPECT_EQ(outcome.error.code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(Mentions(outcome.error, "1 still in flight")) << outcome.error.message;
  EXPECT_EQ(scatter->Post(pair.fabric.In(50), {}).error().code, ErrorCode::kFailedPrecondition);
  auto abandoned = pair.a.group->PrepareScatter({&entry, 1}).value();
  Outcome other;
  ASSERT_TRUE(abandoned->Post(pair.fabric.In(50), other.callback()).has_value());
  pair.fabric.Step(100);
  EXPECT_EQ(other.calls, 1);
  abandoned.reset();  // with a write in flight
  pair.a.group->RemovePeer(pair.to_b);
  pair.fabric.Step(3);
  EXPECT_EQ(outcome.calls, 1);
  Outcome removed;
  ASSERT_TRUE(scatter->Post(pair.fabric.In(50), removed.callback()).has_value());
  pair.fabric.Step(3);
  EXPECT_EQ(removed.error.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Mentions(removed.error, "removed")) << removed.error.message;
}

// Whose domain never completes it, and is gone at last: nobody's memory any more (AddressSanitizer looks).
TEST(Failures, AbandonedScatterEndsWithItsEngine) {
  ConnectedPair pair;
  std::vector<std::byte> from(64), to(64);
  pair.Memory(from, to);
  pair.a.nics[0]->faults().silent = {0};
  const ScatterEntry entry = pair.Entry(64, 1);
  Outcome outcome;
  auto scatter = pair.a.group->PrepareScatter({&entry, 1}).value();
  ASSERT_TRUE(scatter->Post(pair.fabric.In(50), outcome.callback()).has_value());
  pair.fabric.Step(10);
  scatter.reset();
  EXPECT_EQ(outcome.calls, 0);
  EXPECT_FALSE(pair.a.engine->Close(pair.fabric.In(0)).has_value());
  EXPECT_EQ(outcome.calls, 1);
}

TEST(Failures, ExpectationsEndOnce) {
  ConnectedPair pair;
  const uint32_t id = pair.b.group->AllocateImmediates(2).value();
  Outcome late, cancelled, closed;
  ASSERT_TRUE(pair.b.group->ExpectImmediate(id, 2, pair.fabric.In(50), late.callback()).has_value());
  ASSERT_TRUE(pair.b.group->ExpectImmediate(id + 1, 2, pair.fabric.In(500), cancelled.callback()).has_value());
  EXPECT_EQ(pair.b.group->ExpectImmediate(id, 2, pair.fabric.In(50), {}).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(pair.b.group->ExpectImmediate(12345, 2, pair.fabric.In(50), {}).error().code, ErrorCode::kNotFound);
  pair.fabric.Step(10);
  pair.b.group->CancelExpectation(id + 1);
  pair.b.group->CancelExpectation(id + 1);
  pair.b.group->CancelExpectation(12345);
  pair.fabric.Step(100);
  EXPECT_EQ(late.calls, 1);
  EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(Mentions(late.error, "0 times of 2"));
  EXPECT_EQ(cancelled.calls, 1);
  EXPECT_EQ(cancelled.error.code, ErrorCode::kCancelled);
  ASSERT_TRUE(pair.b.group->ExpectImmediate(id, 2, pair.fabric.In(50), closed.callback()).has_value());
  EXPECT_TRUE(pair.b.engine->Close(pair.fabric.In(1000)).has_value());
  EXPECT_EQ(closed.calls, 1);
  EXPECT_EQ(closed.error.code, ErrorCode::kCancelled);
  EXPECT_EQ(pair.b.group->ExpectImmediate(id, 2, pair.fabric.In(50), {}).error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace jax_fabric
