// Writes: sizes, far offsets, immediates, many outstanding, full queues, many peers.
#include <algorithm>
#include <array>
#include <vector>

#include "csrc/engine/domains/conformance/conformance_suite.h"

namespace jax_fabric::conformance {
namespace {

constexpr uint64_t kGuard = 256;

TEST_P(DomainConformance, WritesOfEverySizeTouchNothingElse) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const uint64_t limit = std::min(nodes_[0]->Limits().max_write_bytes, GetParam().largest_write);
  const Buffer source = MakeBuffer(0, limit + kGuard, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, limit + 2 * kGuard + 3);
  nodes_[0]->Fill(source.address, source.length, 1);
  uint32_t immediate = 0;
  for (const uint64_t length :
       std::initializer_list<uint64_t>{0, 1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 1 << 20, 64 << 20}) {
    if (length > limit) continue;
    SCOPED_TRACE(length);
    // Odd offsets on both sides; patterns have a period of 8 bytes in the source offset.
    const uint64_t at = kGuard + 3;
    const WriteRequest write = MakeWrite(0, 1, source, target, length, 0, at, immediate++);
    Post(0, {&write, 1});
    Until("the immediate is there", [&] { return nodes_[1].immediates.size() == immediate; });
    EXPECT_EQ(nodes_[1]->Check(target.address + at, length, 1), kNoMismatch);
    EXPECT_EQ(nodes_[1]->CheckByte(target.address, at, 0xa5), kNoMismatch);
    EXPECT_EQ(nodes_[1]->CheckByte(target.address + at + length, target.length - at - length, 0xa5), kNoMismatch);
    UntilComplete();
    EXPECT_EQ(nodes_[0].own.back().code, ErrorCode::kOk);
    EXPECT_EQ(nodes_[0].own.back().kind, CompletionKind::kWrite);
    nodes_[1]->FillByte(target.address + at, length, 0xa5);
  }
  ExpectEachImmediateOnce(1, immediate);
}

TEST_P(DomainConformance, OffsetsBeyondFourGiB) {
  constexpr uint64_t kFour = uint64_t{4} << 30;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  if (nodes_[1]->Limits().max_region_bytes < kFour + (1 << 20)) GTEST_SKIP() << "regions are smaller than 4 GiB here";
  const Buffer source = MakeBuffer(0, kFour + (1 << 20), Access::kLocalOnly, 0);
  const Buffer target = MakeBuffer(1, kFour + (1 << 20), Access::kRemoteWrite, 0);
  const std::array<uint64_t, 4> offsets = {kFour - 5, kFour + 4095, kFour + 100'000, target.length - 1000};
  for (uint32_t i = 0; i < offsets.size(); ++i) {
    nodes_[0]->Fill(source.address + offsets[i], 1000, i);
    const WriteRequest write = MakeWrite(0, 1, source, target, 1000, offsets[i], offsets[i], i);
    Post(0, {&write, 1});
  }
  ExpectEachImmediateOnce(1, offsets.size());
  for (uint32_t i = 0; i < offsets.size(); ++i) {
    EXPECT_EQ(nodes_[1]->Check(target.address + offsets[i], 1000, i), kNoMismatch);
  }
  // Where offsets cut to 32 bits would have gone.
  EXPECT_EQ(nodes_[1]->CheckByte(target.address, 1 << 20, 0), kNoMismatch);
}

TEST_P(DomainConformance, EveryImmediateArrivesAsItIs) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, 64, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, 64);
  const std::vector<uint32_t> values = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xffffffff, 0};
  std::vector<WriteRequest> writes;
  for (const uint32_t value : values) {
    writes.push_back(MakeWrite(0, 1, source, target, writes.size() % 2 * 8, 0, 0, value));
  }
  writes.push_back(MakeWrite(0, 1, source, target, 8));  // none: must not show up as 0
  // A zero-length write needs no source at all.
  writes[0].source = nullptr;
  writes[0].local_key = 0;
  Post(0, writes);
  Until("all immediates are there", [&] { return nodes_[1].immediates.size() >= values.size(); });
  UntilComplete();
  PollForMore();
  std::vector<uint32_t> seen;
  for (const Completion& completion : nodes_[1].immediates) {
    seen.push_back(completion.immediate);
    EXPECT_TRUE(completion.peer == nodes_[1].peers[0] || completion.peer == Completion::kUnknownPeer);
  }
  auto sorted = values;
  std::sort(sorted.begin(), sorted.end());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, sorted);
}

TEST_P(DomainConformance, ThousandsOutstanding) {
  constexpr uint32_t kCount = 6000;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kCount * 8, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kCount * 8);
  nodes_[0]->Fill(source.address, source.length, 5);
  std::vector<WriteRequest> writes;
  for (uint32_t i = 0; i < kCount; ++i) {
    writes.push_back(MakeWrite(0, 1, source, target, 8, i * 8, i * 8, i));
    writes.back().context = i + (uint64_t{1} << 40);
  }
  Post(0, writes);
  ExpectEachImmediateOnce(1, kCount);
  UntilComplete();
  EXPECT_EQ(nodes_[1]->Check(target.address, target.length, 5), kNoMismatch);
  const auto contexts = CountContexts(nodes_[0].own);
  ASSERT_EQ(contexts.size(), kCount);
  for (const auto& [context, count] : contexts) ASSERT_EQ(count, 1) << context;
}

TEST_P(DomainConformance, FullQueueSaysAgainAndLosesNothing) {
  constexpr uint32_t kCount = 1000;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2, {.max_outstanding = 8, .max_receives = 8}));
  const Buffer source = MakeBuffer(0, 64, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, 64);
  std::vector<WriteRequest> writes;
  for (uint32_t i = 0; i < kCount; ++i) writes.push_back(MakeWrite(0, 1, source, target, i % 64, 0, 0, i));
  EXPECT_GT(Post(0, writes), 0u) << "a queue of 8 took 1,000 writes at once";
  ExpectEachImmediateOnce(1, kCount);
  UntilComplete();
}

TEST_P(DomainConformance, LargeAndSmallWritesShareThePath) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const uint64_t large = std::min<uint64_t>(8 << 20, GetParam().largest_write);
  constexpr uint32_t kLarge = 6, kSmall = 200;
  const Buffer source = MakeBuffer(0, large, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kLarge * large + kSmall * 8);
  nodes_[0]->Fill(source.address, large, 9);
  std::vector<WriteRequest> writes;
  uint32_t immediate = 0;
  for (uint32_t i = 0; i < kLarge; ++i) {
    writes.push_back(MakeWrite(0, 1, source, target, large, 0, i * large, immediate++));
  }
  for (uint32_t i = 0; i < kSmall; ++i) {
    writes.push_back(MakeWrite(0, 1, source, target, 8, 0, kLarge * large + i * 8, immediate++));
  }
  Post(0, writes);
  ExpectEachImmediateOnce(1, immediate);
  for (uint32_t i = 0; i < kLarge; ++i) {
    EXPECT_EQ(nodes_[1]->Check(target.address + i * large, large, 9), kNoMismatch) << i;
  }
  for (uint32_t i = 0; i < kSmall; ++i) {
    EXPECT_EQ(nodes_[1]->Check(target.address + kLarge * large + i * 8, 8, 9), kNoMismatch) << i;
  }
}

TEST_P(DomainConformance, PayloadIsThereWithItsImmediate) {
  constexpr uint32_t kRounds = 30, kSlots = 16;
  constexpr uint64_t kStride = 1 << 17;
  const std::vector<uint64_t> sizes = {1, 9, 64, 500, 4096, 70'000, 131'072};
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kSlots * kStride, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kSlots * kStride);
  size_t looked_at = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::vector<WriteRequest> writes;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t n = round * kSlots + slot;
      nodes_[0]->Fill(source.address + slot * kStride, sizes[n % sizes.size()], n);
      writes.push_back(MakeWrite(0, 1, source, target, sizes[n % sizes.size()], slot * kStride, slot * kStride, n));
    }
    Post(0, writes);
    // Looks as soon as an immediate comes, and writes to the slots again only when all were looked at.
    Until("the round is over", [&] {
      for (; looked_at < nodes_[1].immediates.size(); ++looked_at) {
        const uint32_t n = nodes_[1].immediates[looked_at].immediate;
        const uint64_t at = target.address + n % kSlots * kStride;
        EXPECT_EQ(nodes_[1]->Check(at, sizes[n % sizes.size()], n), kNoMismatch) << n;
      }
      return looked_at == writes.back().immediate.value() + 1u;
    });
    UntilComplete();
  }
  ExpectEachImmediateOnce(1, kRounds * kSlots);
}

TEST_P(DomainConformance, EveryoneWritesToEveryone) {
  const size_t count = GetParam().placement == NodePlacement::kProcesses ? 5 : 12;
  constexpr uint32_t kWrites = 40;
  constexpr uint64_t kBytes = 24;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(count));
  std::vector<Buffer> sources, targets;
  for (size_t i = 0; i < count; ++i) {
    sources.push_back(MakeBuffer(i, kBytes * kWrites, Access::kLocalOnly));
    targets.push_back(MakeBuffer(i, kBytes * kWrites * count));
    nodes_[i]->Fill(sources[i].address, sources[i].length, i);
  }
  for (size_t i = 0; i < count; ++i) {
    std::vector<WriteRequest> writes;
    for (uint32_t k = 0; k < kWrites; ++k) {
      for (size_t j = 0; j < count; ++j) {
        if (i == j) continue;
        writes.push_back(MakeWrite(i, j, sources[i], targets[j], kBytes, k * kBytes, (i * kWrites + k) * kBytes,
                                   static_cast<uint32_t>(i * kWrites + k)));
      }
    }
    Post(i, writes);
  }
  Until("all immediates are there", [&] {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [&](const TestNode& node) { return node.immediates.size() >= (count - 1) * kWrites; });
  });
  PollForMore();
  for (size_t j = 0; j < count; ++j) {
    EXPECT_EQ(nodes_[j].immediates.size(), (count - 1) * kWrites);
    for (const Completion& completion : nodes_[j].immediates) {
      if (completion.peer == Completion::kUnknownPeer) continue;
      EXPECT_EQ(completion.peer, nodes_[j].peers[completion.immediate / kWrites]);
    }
    for (size_t i = 0; i < count; ++i) {
      const uint64_t at = targets[j].address + i * kWrites * kBytes;
      EXPECT_EQ(i == j ? nodes_[j]->CheckByte(at, kWrites * kBytes, 0xa5) : nodes_[j]->Check(at, kWrites * kBytes, i),
                kNoMismatch);
    }
  }
}

}  // namespace
}  // namespace jax_fabric::conformance
