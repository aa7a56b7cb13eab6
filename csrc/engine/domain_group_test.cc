// DomainGroup and what is below it, stepped on a virtual clock over the simulated network.
#include "csrc/engine/domain_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "csrc/engine/testing/stepped_engine.h"

namespace jax_fabric {
namespace {

using simulated::SimulatedDomain;
using simulated::SimulatedDomainOptions;
using testing::Outcome;
using testing::PromptNic;
using testing::SteppedFabric;
using testing::SteppedRank;

// A sender and a receiver that are connected, with memory on both sides.
struct Pair {
  explicit Pair(uint64_t seed = 1, int nics = 1, SimulatedDomainOptions domain = PromptNic(), GroupOptions group = {})
      : fabric(seed), a(fabric.Add("a", nics, domain, std::move(group))), b(fabric.Add("b", nics, domain)) {
    to_b = a.group->AddPeer(b.group->Address()).value();
    to_a = b.group->AddPeer(a.group->Address()).value();
    EXPECT_TRUE(a.group->WaitPeers({&to_b, 1}, fabric.In(100)).has_value());
    EXPECT_TRUE(b.group->WaitPeers({&to_a, 1}, fabric.In(100)).has_value());
  }

  void Memory(void* source_address, uint64_t source_length, void* target_address, uint64_t target_length) {
    source = a.group->RegisterMemory(source_address, source_length, MemoryKind::kHost, Access::kLocalOnly).value();
    const auto memory =
        b.group->RegisterMemory(target_address, target_length, MemoryKind::kHost, Access::kRemoteWrite).value();
    target = DomainGroup::ParseDescriptor(b.group->Describe(memory).value()).value();
  }
  void Memory(std::vector<std::byte>& from, std::vector<std::byte>& to) {
    Memory(from.data(), from.size(), to.data(), to.size());
  }

  ScatterEntry Entry(uint64_t length, uint32_t immediate) const {
    ScatterEntry entry;
    entry.peer = to_b;
    entry.source = source.address;
    entry.source_memory = source;
    entry.target = &target;
    entry.length = length;
    entry.immediate = immediate;
    return entry;
  }

  SteppedFabric fabric;
  SteppedRank& a;
  SteppedRank& b;
  PeerHandle to_b = 0;
  PeerHandle to_a = 0;
  RegisteredMemory source;
  RemoteMemory target;
};

// For addresses that do not exist.
SimulatedDomainOptions WithoutMemory() {
  SimulatedDomainOptions options = PromptNic();
  options.copy = false;
  return options;
}

bool Mentions(const Error& error, const std::string& text) { return error.message.find(text) != std::string::npos; }

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
  Pair pair;
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
    Pair pair(seed, 1 + seed % 4, PromptNic(4));
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

TEST(Requests, SevenBytesOverFourNics) {
  Pair pair(1, 4);
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
    Pair pair(1, 2, WithoutMemory());
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
  Pair pair(1, 2, WithoutMemory());
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

// --- failures

TEST(Failures, OneOfManyFails) {
  for (const int failing : {0, 63, 127}) {
    for (const bool rejected : {false, true}) {
      Pair pair(failing + 1);
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
  Pair pair;
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
  Pair pair(1, 1, small);
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
  Pair pair;
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

TEST(Failures, ExpectationsEndOnce) {
  Pair pair;
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

// --- transfers

TEST(Transfers, CancelWithdrawsAndWaitsForTheRest) {
  Pair pair(1, 1, PromptNic(8));
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
  Pair pair(1, 1, {}, {.name = {}, .domains = {}, .max_requests = 4});
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
  Pair pair(3, 2, PromptNic(3), {.name = {}, .domains = {}, .send_slots = 3});
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
    Pair pair(1, 2);
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
