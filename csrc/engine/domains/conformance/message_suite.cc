// Messages: sizes, more of them than receives, rotating receives.
#include <algorithm>
#include <vector>

#include "csrc/engine/domains/conformance/conformance_suite.h"

namespace jax_fabric::conformance {
namespace {

SendRequest MakeSend(PeerId peer, const Buffer& source, uint64_t offset, uint64_t length, uint64_t context) {
  SendRequest send;
  send.peer = peer;
  send.context = context;
  send.source = reinterpret_cast<const void*>(source.address + offset);
  send.local_key = source.region.local_key;
  send.length = length;
  return send;
}

ReceiveRequest MakeReceive(const Buffer& target, uint64_t offset, uint64_t length, uint64_t context) {
  ReceiveRequest receive;
  receive.context = context;
  receive.target = reinterpret_cast<void*>(target.address + offset);
  receive.local_key = target.region.local_key;
  receive.length = length;
  return receive;
}

TEST_P(DomainConformance, MessagesOfEverySize) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const uint64_t max = nodes_[0]->Limits().max_message_bytes;
  const Buffer source = MakeBuffer(0, max + 1, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, max + 1, Access::kLocalOnly);
  nodes_[0]->Fill(source.address, source.length, 2);
  size_t received = 0;
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{63}, max - 1, max}) {
    SCOPED_TRACE(length);
    nodes_[1]->FillByte(target.address, target.length, 0xa5);
    const ReceiveRequest receive = MakeReceive(target, 0, max, 900 + length);
    ASSERT_EQ(nodes_[1]->PostReceives({&receive, 1}).posted, 1u);
    const SendRequest send = MakeSend(nodes_[0].peers[1], source, 0, length, length);
    Post(0, {&send, 1});
    ASSERT_TRUE(Until("the message is there", [&] { return nodes_[1].receives.size() == received + 1; }));
    const Completion& completion = nodes_[1].receives[received++];
    EXPECT_EQ(completion.context, 900 + length);
    EXPECT_EQ(completion.length, length);
    EXPECT_EQ(completion.code, ErrorCode::kOk);
    EXPECT_EQ(completion.peer, nodes_[1].peers[0]);
    EXPECT_EQ(nodes_[1]->Check(target.address, length, 2), kNoMismatch);
    EXPECT_EQ(nodes_[1]->CheckByte(target.address + length, target.length - length, 0xa5), kNoMismatch);
    UntilComplete();
    EXPECT_EQ(nodes_[0].own.back().kind, CompletionKind::kSend);
  }
  const SendRequest too_long = MakeSend(nodes_[0].peers[1], source, 0, max + 1, 1);
  const PostOutcome outcome = nodes_[0]->PostSends({&too_long, 1});
  EXPECT_EQ(outcome.last, PostResult::kRejected);
  EXPECT_FALSE(outcome.error.empty());
}

TEST_P(DomainConformance, MoreSendsThanReceivesLoseNothing) {
  constexpr uint64_t kCount = 600, kBytes = 700, kPool = 16;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kCount * kBytes, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kPool * kBytes, Access::kLocalOnly);
  std::vector<SendRequest> sends;
  for (uint64_t i = 0; i < kCount; ++i) {
    nodes_[0]->Fill(source.address + i * kBytes, kBytes - i, i);
    sends.push_back(MakeSend(nodes_[0].peers[1], source, i * kBytes, kBytes - i, i));
  }
  // As many as go without a single receive. An immediate still comes through.
  const Buffer word = MakeBuffer(1, 8);
  const PostOutcome first = nodes_[0]->PostSends(sends);
  nodes_[0].posted += first.posted;
  EXPECT_NE(first.last, PostResult::kRejected) << first.error;
  const WriteRequest write = MakeWrite(0, 1, source, word, 8, 0, 0, 5);
  Post(0, {&write, 1});
  Until("the immediate is there", [&] { return nodes_[1].immediates.size() == 1; });

  // Then a small pool that goes round.
  std::vector<ReceiveRequest> pool;
  for (uint64_t i = 0; i < kPool; ++i) pool.push_back(MakeReceive(target, i * kBytes, kBytes, i));
  ASSERT_EQ(nodes_[1]->PostReceives(pool).posted, kPool);
  size_t taken = 0, next = first.posted;
  std::vector<int> seen(kCount);
  Until("all messages are there", [&] {
    if (next < kCount) {
      const PostOutcome outcome = nodes_[0]->PostSends(std::span(sends).subspan(next));
      EXPECT_NE(outcome.last, PostResult::kRejected) << outcome.error;
      nodes_[0].posted += outcome.posted;
      next += outcome.posted;
    }
    for (; taken < nodes_[1].receives.size(); ++taken) {
      const Completion completion = nodes_[1].receives[taken];
      const uint64_t i = kBytes - completion.length;  // lengths are all different
      if (i < kCount) ++seen[i];
      EXPECT_EQ(nodes_[1]->Check(target.address + completion.context * kBytes, completion.length, i), kNoMismatch) << i;
      EXPECT_EQ(nodes_[1]->PostReceives({&pool[completion.context], 1}).posted, 1u);
    }
    return taken >= kCount;
  });
  PollForMore();
  EXPECT_EQ(nodes_[1].receives.size(), kCount);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<ptrdiff_t>(kCount));
}

TEST_P(DomainConformance, ReceivesBeyondTheLimitSayAgain) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2, {.max_outstanding = 8, .max_receives = 8}));
  const uint32_t limit = nodes_[1]->Limits().max_receives;
  const Buffer target = MakeBuffer(1, 64, Access::kLocalOnly);
  const std::vector<ReceiveRequest> receives(limit + 1, MakeReceive(target, 0, 64, 0));
  const PostOutcome outcome = nodes_[1]->PostReceives(receives);
  EXPECT_EQ(outcome.posted, limit);
  EXPECT_EQ(outcome.last, PostResult::kAgain);
  ReceiveRequest bad = receives[0];
  bad.local_key ^= 1ull << 35;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(1));
  EXPECT_EQ(nodes_[2]->PostReceives({&bad, 1}).last, PostResult::kRejected);
}

}  // namespace
}  // namespace jax_fabric::conformance
