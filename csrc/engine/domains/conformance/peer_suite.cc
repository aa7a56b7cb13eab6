// Peers that go: removed, closed, killed, restarted; and a domain that is its own peer.
#include <algorithm>
#include <set>
#include <vector>

#include "csrc/engine/domains/conformance/conformance_suite.h"

namespace jax_fabric::conformance {
namespace {

TEST_P(DomainConformance, RemovedPeerCompletesEverything) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(3));
  const uint64_t large = std::min<uint64_t>(8 << 20, GetParam().largest_write);
  const Buffer source = MakeBuffer(0, large, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, large);
  const Buffer other = MakeBuffer(2, large);
  std::vector<WriteRequest> writes;
  for (uint64_t i = 0; i < 16; ++i) {
    writes.push_back(MakeWrite(0, 1, source, target, i % 2 == 0 ? large : 64, 0, 0, static_cast<uint32_t>(i)));
    writes.back().context = i;
  }
  writes.push_back(MakeWrite(0, 2, source, other, large, 0, 0, 99));
  writes.back().context = 99;
  Post(0, writes);
  nodes_[0]->RemovePeer(nodes_[0].peers[1]);
  EXPECT_EQ(nodes_[0]->PostWrites({writes.data(), 1}).last, PostResult::kRejected);
  Until("it is removed", [&] { return nodes_[0]->State(nodes_[0].peers[1]) == PeerState::kRemoved; });
  UntilComplete();
  PollForMore();
  const auto contexts = CountContexts(nodes_[0].own);
  EXPECT_EQ(contexts.size(), writes.size());
  for (const auto& [context, count] : contexts) EXPECT_EQ(count, 1) << context;
  for (const Completion& completion : nodes_[0].own) {
    if (completion.context == 99) {
      EXPECT_EQ(completion.code, ErrorCode::kOk);
    }
  }
  // An immediate at most once, and one that was successful exactly once.
  std::set<uint32_t> seen;
  for (const Completion& completion : nodes_[1].immediates) EXPECT_TRUE(seen.insert(completion.immediate).second);
  for (const Completion& completion : nodes_[0].own) {
    if (completion.code == ErrorCode::kOk && completion.context != 99) {
      EXPECT_TRUE(seen.contains(static_cast<uint32_t>(completion.context))) << completion.context;
    }
  }
  // The same peer again is a new one.
  ASSERT_NO_FATAL_FAILURE(Connect(0, 1));
  EXPECT_NE(nodes_[0].peers[1], writes[0].peer);
  Until("the peer is ready again", [&] { return nodes_[0]->State(nodes_[0].peers[1]) == PeerState::kReady; });
  const size_t before = nodes_[1].immediates.size();
  const WriteRequest again = MakeWrite(0, 1, source, target, 8, 0, 0, 1000);
  Post(0, {&again, 1});
  Until("the write is there", [&] { return nodes_[1].immediates.size() > before; });
}

TEST_P(DomainConformance, NothingOfARemovedPeerLands) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const uint64_t large = std::min<uint64_t>(8 << 20, GetParam().largest_write);
  const Buffer source = MakeBuffer(1, large, Access::kLocalOnly, 0x11);
  const Buffer target = MakeBuffer(0, large);
  std::vector<WriteRequest> writes;
  for (uint32_t i = 0; i < 16; ++i) {
    writes.push_back(MakeWrite(1, 0, source, target, i % 2 == 0 ? large : 64, 0, 0, i));
    writes.back().context = i;
  }
  Post(1, writes);
  nodes_[0]->RemovePeer(nodes_[0].peers[1]);
  Until("it is removed", [&] { return nodes_[0]->State(nodes_[0].peers[1]) == PeerState::kRemoved; });
  nodes_[0]->FillByte(target.address, large, 0xee);
  UntilComplete();
  // The memory is this domain's again, whatever the other one still tries.
  const PostOutcome late = nodes_[1]->PostWrites({writes.data(), 2});
  nodes_[1].posted += late.posted;
  UntilComplete();
  PollForMore();
  EXPECT_EQ(nodes_[0]->CheckByte(target.address, large, 0xee), kNoMismatch);
  Until("the other one has lost it", [&] { return nodes_[1]->State(nodes_[1].peers[0]) == PeerState::kFailed; });
  // Whoever connects anew writes anew.
  nodes_[1]->RemovePeer(nodes_[1].peers[0]);
  ASSERT_NO_FATAL_FAILURE(Connect(0, 1));
  ASSERT_NO_FATAL_FAILURE(Connect(1, 0));
  Until("both are ready again", [&] {
    return nodes_[0]->State(nodes_[0].peers[1]) == PeerState::kReady &&
           nodes_[1]->State(nodes_[1].peers[0]) == PeerState::kReady;
  });
  const size_t before = nodes_[0].immediates.size();
  const WriteRequest again = MakeWrite(1, 0, source, target, 64, 0, 0, 1000);
  Post(1, {&again, 1});
  Until("the write is there", [&] { return nodes_[0].immediates.size() > before; });
  EXPECT_EQ(nodes_[0]->CheckByte(target.address, 64, 0x11), kNoMismatch);
}

TEST_P(DomainConformance, DeadPeerFailsOnceAndHarmsNobodyElse) {
  if (!GetParam().notices_death) GTEST_SKIP() << "this transport has heartbeats above it";
  ASSERT_NO_FATAL_FAILURE(MakeNodes(3));
  const uint64_t large = GetParam().largest_write;
  const Buffer source = MakeBuffer(0, large, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, large);
  const Buffer other = MakeBuffer(2, large);
  std::vector<WriteRequest> writes;
  for (uint32_t i = 0; i < 8; ++i) {
    writes.push_back(MakeWrite(0, 1, source, target, i % 2 == 0 ? large : 64, 0, 0, i));
    writes.back().context = i;
  }
  Post(0, writes);
  // Node 1 is also sending: node 0 gets some of it.
  const Buffer back = MakeBuffer(1, 64, Access::kLocalOnly);
  const Buffer here = MakeBuffer(0, 64);
  std::vector<WriteRequest> replies(100, MakeWrite(1, 0, back, here, 64, 0, 0, 7));
  nodes_[1]->PostWrites(replies);
  nodes_[1]->Kill();
  nodes_[1].node.reset();
  nodes_[1].own.resize(nodes_[1].posted);

  const PeerId dead = nodes_[0].peers[1];
  Until("both notice", [&] { return !nodes_[0].faults.empty() && !nodes_[2].faults.empty(); });
  UntilComplete();
  PollForMore();
  ASSERT_EQ(nodes_[0].faults.size(), 1u);
  EXPECT_EQ(nodes_[0].faults[0].peer, dead);
  EXPECT_NE(nodes_[0].faults[0].code, ErrorCode::kOk);
  EXPECT_EQ(nodes_[2].faults.size(), 1u);
  EXPECT_EQ(nodes_[0]->State(dead), PeerState::kFailed);
  EXPECT_FALSE(nodes_[0]->LastError().empty());
  const auto contexts = CountContexts(nodes_[0].own);
  EXPECT_EQ(contexts.size(), writes.size());
  for (const auto& [context, count] : contexts) EXPECT_EQ(count, 1) << context;
  EXPECT_EQ(nodes_[0]->PostWrites({writes.data(), 1}).last, PostResult::kRejected);
  EXPECT_LE(nodes_[0].immediates.size(), replies.size());

  const WriteRequest write = MakeWrite(0, 2, source, other, large, 0, 0, 1);
  Post(0, {&write, 1});
  Until("the others go on", [&] { return nodes_[2].immediates.size() == 1; });
}

TEST_P(DomainConformance, RestartedPeerIsANewPeer) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    const size_t old = nodes_.size() - 1;
    const Bytes stale = nodes_[old]->Address();
    const PeerId before = nodes_[0].peers[old];
    nodes_[old]->Kill();
    nodes_[old].node.reset();
    ASSERT_NO_FATAL_FAILURE(MakeNodes(1));
    const size_t fresh = nodes_.size() - 1;
    EXPECT_NE(nodes_[fresh]->Address(), stale);
    EXPECT_NE(nodes_[0].peers[fresh], before);
    nodes_[0]->RemovePeer(before);
    // The old address is refused at once, or fails to connect.
    const auto again = nodes_[0]->AddPeer(stale);
    if (again.has_value()) {
      Until("the stale address fails", [&] { return nodes_[0]->State(*again) == PeerState::kFailed; });
    }
    const Buffer source = MakeBuffer(0, 64, Access::kLocalOnly);
    const Buffer target = MakeBuffer(fresh, 64);
    const WriteRequest write = MakeWrite(0, fresh, source, target, 64, 0, 0, 1);
    Post(0, {&write, 1});
    Until("the write is there", [&] { return nodes_[fresh].immediates.size() == 1; });
  }
}

TEST_P(DomainConformance, DomainIsItsOwnPeer) {
  if (!GetParam().connects_to_itself) GTEST_SKIP() << "not with this transport";
  ASSERT_NO_FATAL_FAILURE(MakeNodes(1));
  ASSERT_NO_FATAL_FAILURE(Connect(0, 0));
  Until("it is ready", [&] { return nodes_[0]->State(nodes_[0].peers[0]) == PeerState::kReady; });
  const Buffer source = MakeBuffer(0, 5000, Access::kLocalOnly);
  const Buffer target = MakeBuffer(0, 5000);
  nodes_[0]->Fill(source.address, 5000, 3);
  const WriteRequest write = MakeWrite(0, 0, source, target, 5000, 0, 0, 12);
  Post(0, {&write, 1});
  Until("the immediate is there", [&] { return nodes_[0].immediates.size() == 1; });
  EXPECT_EQ(nodes_[0].immediates[0].peer, nodes_[0].peers[0]);
  EXPECT_EQ(nodes_[0]->Check(target.address, 5000, 3), kNoMismatch);
}

TEST_P(DomainConformance, ManyPeersComeAndGo) {
  const int rounds = GetParam().placement == NodePlacement::kProcesses ? 3 : 20;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(1));
  const Buffer target = MakeBuffer(0, 64);
  for (int round = 0; round < rounds; ++round) {
    ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
    const size_t first = nodes_.size() - 2;
    for (size_t i = first; i < nodes_.size(); ++i) {
      const Buffer source = MakeBuffer(i, 64, Access::kLocalOnly);
      const WriteRequest write = MakeWrite(i, 0, source, target, 64, 0, 0, static_cast<uint32_t>(i));
      Post(i, {&write, 1});
    }
    Until("both wrote", [&] { return nodes_[0].immediates.size() >= (static_cast<size_t>(round) + 1) * 2; });
    UntilComplete();
    for (size_t i = first; i < nodes_.size(); ++i) {
      nodes_[0]->RemovePeer(nodes_[0].peers[i]);
      nodes_[i].node.reset();
      nodes_[i].own.resize(nodes_[i].posted);
    }
  }
  PollForMore();
  EXPECT_EQ(nodes_[0].immediates.size(), static_cast<size_t>(rounds) * 2);
}

}  // namespace
}  // namespace jax_fabric::conformance
