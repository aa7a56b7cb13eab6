// Memory that is longer than what a transport registers at once: every request goes over the seams, at both ends.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/engine/domains/conformance/engine_suite.h"

namespace jax_fabric::conformance {
namespace {

constexpr uint64_t kRegion = 64 << 10;
constexpr uint64_t kMemoryBytes = 7 * kRegion + 13;

// What the target should hold.
struct Mirror {
  std::vector<std::byte> bytes = std::vector<std::byte>(kMemoryBytes);
  void Copy(uint64_t to, const std::byte* from, uint64_t length) { std::memcpy(bytes.data() + to, from, length); }
  bool Equals(const std::byte* target) const { return std::memcmp(target, bytes.data(), kMemoryBytes) == 0; }
};

TEST_P(EngineConformance, WritesOverSeams) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2, kRegion));
  const Buffer source = MakeBuffer(0, kMemoryBytes, Access::kLocalOnly);
  const Buffer small = MakeBuffer(0, kRegion, Access::kLocalOnly);  // one piece at this end
  const Buffer target = MakeBuffer(1, kMemoryBytes);
  Fill(source.data, kMemoryBytes, 1);
  Fill(small.data, kRegion, 2);
  EXPECT_EQ(nodes_[0].group->MapRemote(nodes_[0].peers[1], target.there), nullptr);  // it is not one
  Mirror mirror;
  const uint32_t immediate = Immediate(1);
  const auto write = [&](const Buffer& from, uint64_t source_offset, const RemoteMemory& to, uint64_t target_offset,
                         uint64_t length) {
    EngineOutcome received;
    // As both sides count, who know nothing of each other's seams.
    Expect(1, immediate, nodes_[1].group->WriteImmediates(nodes_[1].peers[0], length).value(), received);
    const SingleWrite request{.peer = nodes_[0].peers[1],
                              .source = from.here,
                              .source_offset = source_offset,
                              .target = &to,
                              .target_offset = target_offset,
                              .length = length,
                              .immediate = immediate};
    ExpectGood(nodes_[0].group->Write(request, Patient()).value());
    Until("it has arrived", [&] { return received.done(); });
    EXPECT_TRUE(received.ok()) << received.error.message;
  };
  write(source, 0, target.there, 0, kMemoryBytes);
  mirror.Copy(0, source.data, kMemoryBytes);
  EXPECT_TRUE(mirror.Equals(target.data));
  write(source, kMemoryBytes, target.there, kMemoryBytes, 0);
  std::mt19937_64 random(3);
  const auto up_to = [&random](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const Buffer& from = i % 3 == 0 ? small : source;
    const uint64_t length = up_to(std::min<uint64_t>(from.here.length, 3 * kRegion));
    const uint64_t source_offset = up_to(from.here.length - length), target_offset = up_to(kMemoryBytes - length);
    write(from, source_offset, target.there, target_offset, length);
    mirror.Copy(target_offset, from.data + source_offset, length);
    ASSERT_TRUE(mirror.Equals(target.data));
  }
  // Descriptors of a part of it have the pieces of this part.
  for (const uint64_t begin : {uint64_t{5}, kRegion / 2 + 3, 3 * kRegion - 1, kMemoryBytes - kRegion - 20}) {
    for (const uint64_t length : {uint64_t{100}, kRegion, kRegion + 20}) {
      DomainGroup& owner = *nodes_[1].group;
      const auto part =
          owner.RegisterMemory(target.data + begin, length, MemoryKind::kHost, Access::kRemoteWrite).value();
      const auto there = DomainGroup::ParseDescriptor(owner.Describe(part).value()).value();
      write(small, 0, there, length - 50, 50);
      write(small, 60, there, 0, 49);
      mirror.Copy(begin + length - 50, small.data, 50);
      mirror.Copy(begin, small.data + 60, 49);
      ASSERT_TRUE(mirror.Equals(target.data)) << begin << " " << length;
      ASSERT_TRUE(owner.DeregisterMemory(part).has_value());
    }
  }
  EXPECT_EQ(nodes_[1].group->stray_immediates(), 0u);
  EXPECT_TRUE(nodes_[1].group->DeregisterMemory(target.here).has_value());
}

TEST_P(EngineConformance, PagesAndScattersOverSeams) {
  constexpr uint64_t kPage = 20'000, kStride = 20'003, kPages = kMemoryBytes / kStride;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2, kRegion));
  const Buffer source = MakeBuffer(0, kMemoryBytes, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kMemoryBytes);
  Fill(source.data, kMemoryBytes, 1);
  Mirror mirror;
  const uint32_t immediate = Immediate(1);
  std::vector<uint64_t> from, to;
  for (uint64_t i = 0; i < kPages; ++i) {
    from.push_back(i);
    to.push_back((i * 7 + 3) % kPages);
    mirror.Copy(to[i] * kStride, source.data + 5 + i * kPage, kPage);
  }
  EngineOutcome received;
  Expect(1, immediate, kPages, received);
  const PagedWrites pages{.peer = nodes_[0].peers[1],
                          .page_length = kPage,
                          .source = source.here,
                          .source_pages = {from, kPage, 5},
                          .target = &target.there,
                          .target_pages = {to, kStride, 0},
                          .immediate = immediate};
  ExpectGood(nodes_[0].group->WritePages(pages, Patient()).value());
  Until("all pages are there", [&] { return received.done(); });
  EXPECT_TRUE(received.ok()) << received.error.message;
  EXPECT_TRUE(mirror.Equals(target.data));

  std::vector<ScatterEntry> entries;
  uint64_t immediates = 0;
  for (uint64_t i = 0; i < 6; ++i) {
    const uint64_t length = 10'001 * (i + 1), offset = i * kRegion + 77;
    entries.push_back({.peer = nodes_[0].peers[1],
                       .source = source.data + offset / 2,
                       .source_memory = source.here,
                       .target = &target.there,
                       .target_offset = offset,
                       .length = length,
                       .immediate = immediate,
                       .max_length = length + 5000});
    immediates += nodes_[1].group->ScatterImmediates(nodes_[1].peers[0], length + 5000).value();
    mirror.Copy(offset, source.data + offset / 2, length + 5000);
  }
  for (const uint64_t more : {0, 5000}) {
    EngineOutcome arrived, sent;
    const auto scatter = nodes_[0].group->PrepareScatter(entries).value();
    for (size_t i = 0; i < entries.size(); ++i) scatter->SetLength(i, entries[i].length + more);
    Expect(1, immediate, immediates, arrived);
    ASSERT_TRUE(scatter->Post(In(60'000), sent.callback()).has_value());
    Until("it is everywhere", [&] { return arrived.done() && sent.done(); });
    EXPECT_TRUE(arrived.ok() && sent.ok()) << arrived.error.message << sent.error.message;
  }
  EXPECT_TRUE(mirror.Equals(target.data));
}

}  // namespace
}  // namespace jax_fabric::conformance
