// Every request type of the engine: what is asked for happens, and nothing else.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "csrc/engine/domains/conformance/engine_suite.h"

namespace jax_fabric::conformance {
namespace {

constexpr uint64_t kGuard = 512;

bool Untouched(const std::byte* data, uint64_t length) {
  return std::all_of(data, data + length, [](std::byte each) { return each == std::byte{0xa5}; });
}

TEST_P(EngineConformance, WritesOfEverySize) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const uint64_t largest = GetParam().largest_write;
  const Buffer source = MakeBuffer(0, largest, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, largest + 2 * kGuard, Access::kRemoteWrite, 0xa5);
  const uint32_t immediate = Immediate(1);
  Fill(source.data, largest, 1);
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{64}, uint64_t{4095}, uint64_t{4097},
                                uint64_t{100'003}, uint64_t{1} << 20, largest}) {
    SCOPED_TRACE(length);
    const uint64_t declared = length + length / 2;
    EngineOutcome received;
    Expect(1, immediate, nodes_[1].group->WriteImmediates(nodes_[1].peers[0], declared).value(), received);
    const SingleWrite write{.peer = nodes_[0].peers[1],
                            .source = source.here,
                            .target = &target.there,
                            .target_offset = kGuard,
                            .length = length,
                            .max_length = declared,
                            .immediate = immediate};
    ExpectGood(nodes_[0].group->Write(write, Patient()).value());
    Until("it has arrived", [&] { return received.done(); });
    EXPECT_TRUE(received.ok()) << received.error.message;
    EXPECT_TRUE(Holds(target.data + kGuard, length, 1));
    EXPECT_TRUE(Untouched(target.data, kGuard));
    EXPECT_TRUE(Untouched(target.data + kGuard + length, std::min(largest - length, uint64_t{1} << 16) + kGuard));
    std::memset(target.data + kGuard, 0xa5, length);
  }
  EXPECT_EQ(nodes_[1].group->stray_immediates(), 0u);
}

TEST_P(EngineConformance, PagesInAnyOrderBeyondFourGiB) {
  constexpr uint64_t kPages = 700, kPage = 4096, kStride = 8192, kFar = (uint64_t{4} << 30) - 300 * kStride;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kPages * kPage, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kFar + kPages * kStride);
  const uint32_t immediate = Immediate(1);
  std::vector<uint64_t> from(kPages), to(kPages);
  std::iota(from.begin(), from.end(), 0);
  std::iota(to.begin(), to.end(), 0);
  std::mt19937_64 random(3);
  std::shuffle(from.begin(), from.end(), random);
  std::shuffle(to.begin(), to.end(), random);
  for (uint64_t i = 0; i < kPages; ++i) Fill(source.data + from[i] * kPage, kPage, from[i]);
  EngineOutcome received;
  Expect(1, immediate, kPages, received);
  const PagedWrites write{.peer = nodes_[0].peers[1],
                          .page_length = kPage,
                          .source = source.here,
                          .source_pages = {from, kPage, 0},
                          .target = &target.there,
                          .target_pages = {to, kStride, kFar},
                          .immediate = immediate};
  ExpectGood(nodes_[0].group->WritePages(write, Patient()).value());
  Until("all pages are there", [&] { return received.done(); });
  EXPECT_TRUE(received.ok()) << received.error.message;
  for (uint64_t i = 0; i < kPages; ++i) {
    const std::byte* page = target.data + kFar + to[i] * kStride;
    ASSERT_TRUE(Holds(page, kPage, from[i])) << i;
    ASSERT_TRUE(std::all_of(page + kPage, page + kStride, [](std::byte each) { return each == std::byte{0}; })) << i;
  }
}

// All to all, posted again and again with other lengths; every exchange is the barrier of the one before.
TEST_P(EngineConformance, ScatterAmongAll) {
  constexpr size_t kNodes = 4;
  constexpr uint64_t kSlot = 20'000;
  constexpr int kRounds = 12;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(kNodes));
  std::vector<Buffer> sources, targets;
  std::vector<uint32_t> immediates;
  for (size_t i = 0; i < kNodes; ++i) {
    sources.push_back(MakeBuffer(i, 2 * kSlot, Access::kLocalOnly));
    targets.push_back(MakeBuffer(i, 2 * kNodes * kSlot));
    immediates.push_back(nodes_[i].group->AllocateImmediates(2).value());
  }
  const auto length = [](int round, size_t from, size_t to) -> uint64_t {
    return (round * 7919 + from * 104'729 + to * 31) % kSlot * (from != to || round % 3 != 0);
  };
  std::vector<std::unique_ptr<PreparedScatter>> scatters[2];
  for (int parity = 0; parity < 2; ++parity) {
    for (size_t i = 0; i < kNodes; ++i) {
      std::vector<ScatterEntry> entries;
      for (size_t j = 0; j < kNodes; ++j) {
        ScatterEntry entry;
        entry.peer = nodes_[i].peers[j];
        entry.source = sources[i].data + parity * kSlot;
        entry.source_memory = sources[i].here;
        entry.target = &targets[j].there;
        entry.target_offset = (parity * kNodes + i) * kSlot;
        entry.immediate = immediates[j] + parity;
        entry.max_length = kSlot;
        entries.push_back(entry);
      }
      scatters[parity].push_back(nodes_[i].group->PrepareScatter(entries).value());
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    const int parity = round % 2;
    std::vector<EngineOutcome> sent(kNodes), received(kNodes);
    for (size_t i = 0; i < kNodes; ++i) {
      Fill(sources[i].data + parity * kSlot, kSlot, round * 10 + i);
      for (size_t j = 0; j < kNodes; ++j) scatters[parity][i]->SetLength(j, length(round, i, j));
      const uint64_t each = nodes_[i].group->ScatterImmediates(nodes_[i].peers[0], kSlot).value();
      Expect(i, immediates[i] + parity, each * kNodes, received[i]);
      ASSERT_TRUE(scatters[parity][i]->Post(In(60'000), sent[i].callback()).has_value());
    }
    Until("the round is over", [&] {
      return std::all_of(sent.begin(), sent.end(), [](const auto& each) { return each.done(); }) &&
             std::all_of(received.begin(), received.end(), [](const auto& each) { return each.done(); });
    });
    for (size_t i = 0; i < kNodes; ++i) {
      EXPECT_TRUE(sent[i].ok()) << sent[i].error.message;
      EXPECT_TRUE(received[i].ok()) << received[i].error.message;
      for (size_t j = 0; j < kNodes; ++j) {
        EXPECT_TRUE(Holds(targets[i].data + (parity * kNodes + j) * kSlot, length(round, j, i), round * 10 + j));
      }
    }
  }
  for (auto& of_parity : scatters) of_parity.clear();
}

TEST_P(EngineConformance, BarriersMeet) {
  constexpr size_t kNodes = 3;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(kNodes));
  std::vector<Buffer> anything;
  std::vector<uint32_t> immediates;
  for (size_t i = 0; i < kNodes; ++i) {
    anything.push_back(MakeBuffer(i, 64));
    immediates.push_back(Immediate(i));
  }
  for (int round = 0; round < 10; ++round) {
    std::vector<EngineOutcome> met(kNodes);
    std::vector<Transfer> transfers;
    for (size_t i = 0; i < kNodes; ++i) {
      Expect(i, immediates[i], kNodes, met[i]);
      if (i + 1 < kNodes) {
        EXPECT_FALSE(met[i].done());
      }
      std::vector<BarrierTarget> targets;
      for (size_t j = 0; j < kNodes; ++j) targets.push_back({nodes_[i].peers[j], &anything[j].there, immediates[j]});
      transfers.push_back(nodes_[i].group->Barrier(targets, Patient()).value());
    }
    for (const Transfer& each : transfers) ExpectGood(each);
    Until("all have met", [&] { return std::all_of(met.begin(), met.end(), [](auto& each) { return each.done(); }); });
    for (const EngineOutcome& each : met) EXPECT_TRUE(each.ok()) << each.error.message;
  }
}

TEST_P(EngineConformance, MessagesOfEverySizeBothWays) {
  constexpr uint64_t kCount = 400;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  struct Received {
    std::mutex mutex;
    std::vector<int> seen = std::vector<int>(kCount);
    int damaged = 0;
    uint64_t total = 0;
  } received[2];
  for (size_t node = 0; node < 2; ++node) {
    ReceiveOptions options;
    options.buffers = 8;
    options.max_bytes = 900;
    options.on_message = [&received, node, this](PeerHandle peer, ByteView message) {
      Received& mine = received[node];
      const std::lock_guard<std::mutex> lock(mine.mutex);
      const uint64_t number = message.size() / 2;
      ++mine.total;
      if (peer != nodes_[node].peers[1 - node] || number >= kCount || message.size() % 2 != 0 ||
          !Holds(message.data(), message.size(), message.size())) {
        ++mine.damaged;
      } else {
        ++mine.seen[number];
      }
    };
    ASSERT_TRUE(nodes_[node].group->ReceiveMessages(std::move(options)).has_value());
  }
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < kCount; ++i) {
    for (size_t node = 0; node < 2; ++node) {
      std::vector<std::byte> message(2 * i);  // the size says which one it is
      Fill(message.data(), message.size(), message.size());
      auto sent = nodes_[node].group->Send(nodes_[node].peers[1 - node], message, Patient());
      ASSERT_TRUE(sent.has_value()) << sent.error().message;
      transfers.push_back(std::move(*sent));
    }
  }
  for (const Transfer& each : transfers) ExpectGood(each);
  Until("all messages are there", [&] {
    return std::all_of(std::begin(received), std::end(received), [](Received& each) {
      const std::lock_guard<std::mutex> lock(each.mutex);
      return each.total >= kCount;
    });
  });
  for (Received& each : received) {
    const std::lock_guard<std::mutex> lock(each.mutex);
    EXPECT_EQ(each.total, kCount);
    EXPECT_EQ(each.damaged, 0);
    EXPECT_TRUE(std::all_of(each.seen.begin(), each.seen.end(), [](int count) { return count == 1; }));
  }
}

TEST_P(EngineConformance, ThousandsOutstanding) {
  constexpr uint64_t kCount = 4000;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kCount * 8, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kCount * 8);
  const uint32_t immediate = Immediate(1);
  Fill(source.data, kCount * 8, 9);
  EngineOutcome received;
  Expect(1, immediate, kCount * nodes_[1].group->WriteImmediates(nodes_[1].peers[0], 8).value(), received);
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < kCount; ++i) {
    const SingleWrite write{.peer = nodes_[0].peers[1],
                            .source = source.here,
                            .source_offset = i * 8,
                            .target = &target.there,
                            .target_offset = i * 8,
                            .length = 8,
                            .immediate = immediate};
    transfers.push_back(nodes_[0].group->Write(write, Patient()).value());
  }
  for (const Transfer& each : transfers) ExpectGood(each);
  Until("everything is there", [&] { return received.done(); });
  EXPECT_TRUE(received.ok()) << received.error.message;
  EXPECT_TRUE(Holds(target.data, kCount * 8, 9));
}

}  // namespace
}  // namespace jax_fabric::conformance
