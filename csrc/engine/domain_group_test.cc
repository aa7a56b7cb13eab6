// DomainGroup and what is below it, stepped on a virtual clock over the simulated network.
#include "csrc/engine/domain_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "csrc/engine/testing/connected_pair.h"
#include "csrc/engine/testing/stepped_engine.h"

namespace jax_fabric {
namespace {

using simulated::SimulatedDomain;
using simulated::SimulatedDomainOptions;
using testing::ConnectedPair;
using testing::Mentions;
using testing::Outcome;
using testing::PromptNic;
using testing::SteppedFabric;
using testing::SteppedRank;
using testing::WithoutMemory;

// --- peers

TEST(Peers, RefusesWhatCannotWork) {
  SteppedFabric fabric;
  SteppedRank& one = fabric.Add("one", 1);
  SteppedRank& two = fabric.Add("two", 2);
  SimulatedDomainOptions of_another_kind = PromptNic();
  of_another_kind.kind = DomainKind::kEfa;
  SteppedRank& other = fabric.Add("other", 1, of_another_kind);
  const auto nics = one.group->AddPeer(two.group->Address());
  EXPECT_EQ(nics.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(Mentions(nics.error(), "'two': it has 2 NICs")) << nics.error().message;
  EXPECT_EQ(one.group->AddPeer(other.group->Address()).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(one.group->AddPeer({}).has_value());
  Bytes damaged = two.group->Address();
  damaged[20] ^= std::byte{1};
  EXPECT_FALSE(two.group->AddPeer(damaged).has_value());
}

TEST(Peers, WaitNamesThoseThatAreNotReady) {
  SteppedFabric fabric;
  SteppedRank& a = fabric.Add("a");
  SteppedRank& b = fabric.Add("b");
  SteppedRank& c = fabric.Add("c");
  a.nics[0]->faults().never_ready.insert(1);
  const std::vector<PeerHandle> peers{a.group->AddPeer(b.group->Address()).value(),
                                      a.group->AddPeer(c.group->Address()).value()};
  const Status status = a.group->WaitPeers(peers, fabric.In(50));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(Mentions(status.error(), "peer 1 'c'")) << status.error().message;
  EXPECT_FALSE(Mentions(status.error(), "'b'"));
  EXPECT_TRUE(a.group->WaitPeers({peers.data(), 1}, fabric.In(50)).has_value());
  EXPECT_FALSE(a.group->WaitPeers(std::vector<PeerHandle>{77}, fabric.In(50)).has_value());
}

TEST(Peers, ManyMadeAndRemoved) {
  SteppedFabric fabric;
  SteppedRank& a = fabric.Add("a");
  SteppedRank& b = fabric.Add("b");
  const Bytes address = b.group->Address();
  for (int i = 0; i < 2000; ++i) {
    const PeerHandle peer = a.group->AddPeer(address).value();
    ASSERT_EQ(peer, static_cast<PeerHandle>(i));
    a.group->RemovePeer(peer);
    a.group->RemovePeer(peer);
  }
  a.engine->Step();
  const PeerHandle last = a.group->AddPeer(address).value();
  EXPECT_TRUE(a.group->WaitPeers({&last, 1}, fabric.In(100)).has_value());
}

TEST(Peers, StaleDescriptorsAreRefused) {
  ConnectedPair pair;
  std::vector<std::byte> from(64), to(64);
  pair.Memory(from, to);
  RemoteMemory stale = pair.target;
  stale.incarnation ^= 1;
  ScatterEntry entry = pair.Entry(64, 1);
  entry.target = &stale;
  EXPECT_EQ(pair.a.group->PrepareScatter({&entry, 1}).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(pair.a.group->MapRemote(pair.to_b, stale), nullptr);
  EXPECT_EQ(pair.a.group->MapRemote(pair.to_b, pair.target), to.data());
  EXPECT_EQ(pair.a.group->Describe(pair.source).error().code, ErrorCode::kPermissionDenied);
}

// --- order and sizes

TEST(Requests, AnyOrderBySeed) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ConnectedPair pair(seed, 1 + seed % 4, PromptNic(4));
    for (SimulatedDomain* nic : pair.a.nics) nic->faults().again_probability = 0.3;
    std::vector<std::byte> from(4096), to(64 * 64);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * seed);
    pair.Memory(from, to);
    const uint32_t immediate = pair.b.group->AllocateImmediates(1).value();
    std::vector<ScatterEntry> entries;
    for (uint64_t i = 0; i < 64; ++i) {
      ScatterEntry entry = pair.Entry(i, immediate);
      entry.source = from.data() + i;
      entry.target_offset = i * 64;
      entries.push_back(entry);
    }
    auto scatter = pair.a.group->PrepareScatter(entries).value();
    for (int round = 0; round < 3; ++round) {
      Outcome sent, received;
      std::fill(to.begin(), to.end(), std::byte{0});
      ASSERT_TRUE(pair.b.group->ExpectImmediate(immediate, 64, pair.fabric.In(5000), received.callback()).has_value());
      ASSERT_TRUE(scatter->Post(pair.fabric.In(5000), sent.callback()).has_value());
      EXPECT_EQ(scatter->Post(pair.fabric.In(5000), sent.callback()).error().code, ErrorCode::kFailedPrecondition);
      for (int i = 0; i < 5000 && sent.calls + received.calls < 2; ++i) pair.fabric.Step();
      ASSERT_TRUE(sent.ok()) << seed << " " << sent.error.message;
      ASSERT_TRUE(received.ok()) << seed << " " << received.error.message;
      for (uint64_t i = 0; i < 64; ++i) ASSERT_TRUE(std::equal(&from[i], &from[i] + i, &to[i * 64])) << seed;
    }
  }
}

TEST(Requests, UnderAGrantAllGoesToWhoGaveIt) {
  ConnectedPair pair;
  std::vector<std::byte> from(64), to(64);
  pair.Memory(from, to);
  const uint32_t first = pair.b.group->AllocateImmediates(2).value();
  const std::vector<ScatterEntry> entries{pair.Entry(8, first), pair.Entry(8, first)};
  const std::vector<ScatterEntry> others{pair.Entry(8, first), pair.Entry(8, first + 1)};
  auto scatter = pair.a.group->PrepareScatter(entries).value();
  WriteGrant grant{.id = 1, .first_open = 1, .immediate = first};
  EXPECT_TRUE(Mentions(scatter->Post(pair.fabric.In(100), {}, grant).error(), "call ReceiveMessages first"));
  for (SteppedRank* rank : {&pair.a, &pair.b}) {
    ASSERT_TRUE(
        rank->group->ReceiveMessages({.buffers = 4, .max_bytes = 256, .on_message = [](PeerHandle, ByteView) {}})
            .has_value());
  }
  grant = pair.b.group->OpenGrant(pair.to_a, first).value();
  Outcome sent, arrived;
  ASSERT_TRUE(pair.b.group->ExpectImmediate(first, 2, pair.fabric.In(100), arrived.callback()).has_value());
  ASSERT_TRUE(scatter->Post(pair.fabric.In(100), sent.callback(), grant).has_value());
  pair.fabric.Step(50);
  EXPECT_TRUE(sent.ok() && arrived.ok());

  const auto mixed = pair.a.group->PrepareScatter(others).value();
  for (const Status& status : {mixed->Post(pair.fabric.In(100), {}, grant),
                               pair.a.group->PrepareScatter({}).value()->Post(pair.fabric.In(100), {}, grant)}) {
    EXPECT_TRUE(!status.has_value() && Mentions(status.error(), "to bring its immediate"));
  }
  const RequestOptions options{.deadline = pair.fabric.In(100), .grant = grant};
  const BarrierTarget wrong{pair.to_b, &pair.target, first + 1}, right{pair.to_b, &pair.target, first};
  EXPECT_TRUE(Mentions(pair.a.group->Barrier({{right, wrong}}, options).error(), "to bring its immediate"));
  EXPECT_TRUE(Mentions(pair.a.group->Barrier({}, options).error(), "a barrier of nobody"));
  EXPECT_TRUE(Mentions(pair.a.group->Scatter({}, options).error(), "a scatter of nothing"));
  EXPECT_TRUE(Mentions(pair.a.group->Send(pair.to_b, {}, options).error(), "not for messages"));
  EXPECT_TRUE(pair.a.group->Barrier({{right}}, options).has_value());
}

TEST(Requests, SevenBytesOverFourNics) {
  ConnectedPair pair(1, 4);
  std::vector<std::byte> from(7, std::byte{9}), to(100'000);
  pair.Memory(from, to);
  const uint32_t immediate = pair.b.group->AllocateImmediates(1).value();
  const uint64_t parts = pair.b.group->WriteImmediates(pair.to_a, 100'000).value();
  EXPECT_EQ(parts, 4u);
  EXPECT_EQ(pair.a.group->WriteImmediates(pair.to_b, 100'000).value(), parts);
  Outcome received;
  ASSERT_TRUE(pair.b.group->ExpectImmediate(immediate, parts, pair.fabric.In(1000), received.callback()).has_value());
  SingleWrite write{.peer = pair.to_b,
                    .source = pair.source,
                    .target = &pair.target,
                    .target_offset = 99'993,
                    .length = 7,
                    .max_length = 100'000,
                    .immediate = immediate};
  EXPECT_TRUE(pair.a.group->Write(write, {.deadline = pair.fabric.In(1000)}).value().Wait(pair.fabric.In(1000)));
  pair.fabric.Step(3);
  EXPECT_TRUE(received.ok());
  EXPECT_EQ(std::count(to.begin(), to.end(), std::byte{9}), 7);
  uint64_t sum = 0;
  for (SimulatedDomain* nic : pair.a.nics) {
    ASSERT_EQ(nic->writes().size(), 1u);
    sum += nic->writes()[0].length;
  }
  EXPECT_EQ(sum, 7u);
}

TEST(Requests, SixtyFourBitSizes) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  for (const uint64_t length :
       {(uint64_t{1} << 31) - 1, uint64_t{1} << 31, (uint64_t{1} << 32) - 1, (uint64_t{1} << 32) + 3}) {
    ConnectedPair pair(1, 2, WithoutMemory());
    void* const source = reinterpret_cast<void*>(uint64_t{1} << 40);
    void* const target = reinterpret_cast<void*>(uint64_t{1} << 41);
    pair.Memory(source, length, target, 5 * kGiB + length);
    SingleWrite write{
        .peer = pair.to_b, .source = pair.source, .target = &pair.target, .target_offset = 5 * kGiB, .length = length};
    EXPECT_TRUE(pair.a.group->Write(write, {.deadline = pair.fabric.In(1000)}).value().Wait(pair.fabric.In(1000)));
    std::vector<WriteRequest> all;
    for (SimulatedDomain* nic : pair.a.nics) all.insert(all.end(), nic->writes().begin(), nic->writes().end());
    std::sort(all.begin(), all.end(), [](auto& x, auto& y) { return x.remote_address < y.remote_address; });
    uint64_t next = (uint64_t{1} << 41) + 5 * kGiB;
    for (const WriteRequest& part : all) {
      EXPECT_EQ(part.remote_address, next);
      EXPECT_EQ(reinterpret_cast<uint64_t>(part.source) - (uint64_t{1} << 40), next - (uint64_t{1} << 41) - 5 * kGiB);
      EXPECT_LE(part.length, kGiB);
      next += part.length;
    }
    EXPECT_EQ(next, (uint64_t{1} << 41) + 5 * kGiB + length);
    write.target_offset += 1;
    EXPECT_EQ(pair.a.group->Write(write, {}).error().code, ErrorCode::kOutOfRange);
    write.target_offset = ~uint64_t{0};
    EXPECT_EQ(pair.a.group->Write(write, {}).error().code, ErrorCode::kOutOfRange);
  }
}

TEST(Requests, SeventyThousandPages) {
  constexpr uint64_t kPages = 70'000, kBytes = 65'536;
  ConnectedPair pair(1, 2, WithoutMemory());
  pair.Memory(reinterpret_cast<void*>(uint64_t{1} << 40), kPages * kBytes, reinterpret_cast<void*>(uint64_t{1} << 41),
              kPages * kBytes);
  std::vector<uint64_t> from(kPages), to(kPages);
  std::iota(from.begin(), from.end(), 0);
  std::iota(to.rbegin(), to.rend(), 0);
  PagedWrites pages{.peer = pair.to_b,
                    .page_length = kBytes,
                    .source = pair.source,
                    .source_pages = {from, kBytes, 0},
                    .target = &pair.target,
                    .target_pages = {to, kBytes, 0}};
  EXPECT_TRUE(
      pair.a.group->WritePages(pages, {.deadline = pair.fabric.In(100'000)}).value().Wait(pair.fabric.In(100'000)));
  ASSERT_EQ(pair.a.nics[0]->writes().size(), kPages / 2);
  for (const WriteRequest& write : pair.a.nics[1]->writes()) {
    const uint64_t page = (reinterpret_cast<uint64_t>(write.source) - (uint64_t{1} << 40)) / kBytes;
    ASSERT_EQ(write.remote_address, (uint64_t{1} << 41) + (kPages - 1 - page) * kBytes);
  }
  to[69'999] = kPages;
  EXPECT_EQ(pair.a.group->WritePages(pages, {}).error().code, ErrorCode::kOutOfRange);
  to[69'999] = ~uint64_t{0} / 2;
  EXPECT_EQ(pair.a.group->WritePages(pages, {}).error().code, ErrorCode::kOutOfRange);
}

// --- transfers

TEST(Transfers, CancelWithdrawsAndWaitsForTheRest) {
  ConnectedPair pair(1, 1, PromptNic(8));
  std::vector<std::byte> from(1000), to(1000);
  pair.Memory(from, to);
  std::vector<uint64_t> indices(1000);
  std::iota(indices.begin(), indices.end(), 0);
  PagedWrites pages{.peer = pair.to_b,
                    .page_length = 1,
                    .source = pair.source,
                    .source_pages = {indices, 1, 0},
                    .target = &pair.target,
                    .target_pages = {indices, 1, 0}};
  for (const int steps : {0, 1, 10, 100'000}) {
    pair.a.nics[0]->ForgetWrites();
    Transfer transfer = pair.a.group->WritePages(pages, {.deadline = pair.fabric.In(100'000)}).value();
    for (int i = 0; i < steps && !transfer.done(); ++i) pair.fabric.Step();
    transfer.Cancel();
    Transfer copy = transfer;
    copy.Cancel();
    const Status status = transfer.Wait(pair.fabric.In(100'000));
    if (steps == 100'000) {
      EXPECT_TRUE(status.has_value());
      continue;
    }
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
    EXPECT_TRUE(transfer.drained());
    const size_t posted = pair.a.nics[0]->writes().size();
    EXPECT_LT(posted, 1000u);
    pair.fabric.Step(100);
    EXPECT_EQ(pair.a.nics[0]->writes().size(), posted);
  }
}

TEST(Transfers, MoreThanThePoolHolds) {
  ConnectedPair pair(1, 1, {}, {.name = {}, .domains = {}, .max_requests = 4});
  std::vector<std::byte> from(64), to(64);
  pair.Memory(from, to);
  pair.a.nics[0]->faults().again = {0};
  const ScatterEntry entry = pair.Entry(64, 1);
  std::vector<Transfer> transfers;
  for (int i = 0; i < 4; ++i) {
    transfers.push_back(pair.a.group->Scatter({&entry, 1}, {.deadline = pair.fabric.In(100)}).value());
  }
  const auto fifth = pair.a.group->Scatter({&entry, 1}, {.deadline = pair.fabric.In(50)});
  ASSERT_FALSE(fifth.has_value());
  EXPECT_EQ(fifth.error().code, ErrorCode::kResourceExhausted);
  pair.a.nics[0]->faults().again.clear();
  transfers.clear();
  const auto sixth = pair.a.group->Scatter({&entry, 1}, {.deadline = pair.fabric.In(500)});
  ASSERT_TRUE(sixth.has_value());
  EXPECT_TRUE(sixth->Wait(pair.fabric.In(500)).has_value());
}

TEST(Transfers, MessagesGoRound) {
  ConnectedPair pair(3, 2, PromptNic(3), {.name = {}, .domains = {}, .send_slots = 3});
  std::vector<int> seen(200);
  ASSERT_TRUE(pair.b.group->ReceiveMessages(
      {.buffers = 2, .max_bytes = 64, .on_message = [&](PeerHandle peer, ByteView message) {
         EXPECT_EQ(peer, pair.to_a);
         ASSERT_EQ(message.size(), 2u);
         ++seen[static_cast<size_t>(message[0])];
       }}));
  EXPECT_EQ(pair.b.group->ReceiveMessages({}).error().code, ErrorCode::kAlreadyExists);
  int done = 0;
  for (int i = 0; i < 200; ++i) {
    const Bytes message{static_cast<std::byte>(i), std::byte{0}};
    ASSERT_TRUE(pair.a.group
                    ->Send(pair.to_b, message,
                           {.deadline = pair.fabric.In(10'000),
                            .on_done = [&](const Status& status) { done += status.has_value(); }})
                    .has_value());
  }
  pair.fabric.Step(200);
  EXPECT_EQ(done, 200);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 200);
  EXPECT_EQ(pair.a.group->Send(pair.to_b, Bytes(1025), {}).error().code, ErrorCode::kOutOfRange);
}

TEST(Close, EndsEverythingOnce) {
  for (const bool silent : {false, true}) {
    ConnectedPair pair(1, 2);
    std::vector<std::byte> from(64), to(64);
    pair.Memory(from, to);
    for (SimulatedDomain* nic : pair.a.nics) (silent ? nic->faults().silent : nic->faults().again) = {0};
    const ScatterEntry entry = pair.Entry(64, 1);
    std::vector<Outcome> outcomes(100);
    for (Outcome& outcome : outcomes) {
      ASSERT_TRUE(
          pair.a.group->Scatter({&entry, 1}, {.deadline = pair.fabric.In(1'000'000), .on_worker = outcome.callback()})
              .has_value());
    }
    pair.fabric.Step(5);
    EXPECT_TRUE(pair.a.engine->Close(pair.fabric.In(1000)).has_value());
    EXPECT_TRUE(pair.a.engine->Close(pair.fabric.In(1000)).has_value());
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.calls, 1);
      ASSERT_EQ(outcome.error.code, ErrorCode::kCancelled) << outcome.error.message;
    }
    EXPECT_EQ(pair.a.group->Scatter({&entry, 1}, {}).error().code, ErrorCode::kCancelled);
    EXPECT_EQ(pair.a.group->AddPeer(pair.b.group->Address()).error().code, ErrorCode::kCancelled);
    EXPECT_EQ(pair.a.engine->AddGroup({}).error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace jax_fabric
