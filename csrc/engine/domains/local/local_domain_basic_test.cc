// The shortest use of the local domain, as documentation and smoke test. The contract is checked by the conformance
// suite.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "csrc/engine/domains/local/local_domain.h"

namespace jax_fabric {
namespace {

TEST(LocalDomainBasic, TwoDomainsOneThread) {
  auto a = CreateLocalDomain({}).value();
  auto b = CreateLocalDomain({}).value();
  const PeerId to_b = a->AddPeer(b->address()).value();
  EXPECT_EQ(a->AddPeer(b->address()).value(), to_b);
  EXPECT_EQ(a->peer_state(to_b), PeerState::kReady);
  EXPECT_EQ(a->peer_path(to_b), "same process");

  std::vector<std::byte> source(1 << 20), target(1 << 20);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7);
  const auto from = a->RegisterMemory(source.data(), source.size(), MemoryKind::kHost, Access::kLocalOnly).value();
  const auto to = b->RegisterMemory(target.data(), target.size(), MemoryKind::kHost, Access::kRemoteWrite).value();

  WriteRequest write;
  write.peer = to_b;
  write.context = 42;
  write.source = source.data();
  write.local_key = from.local_key;
  write.length = source.size();
  write.remote_address = to.remote_address;
  write.remote_key = to.remote_key;
  write.immediate = 7;
  ASSERT_EQ(a->PostWrite(write), PostResult::kPosted) << a->last_error();
  EXPECT_EQ(a->DeregisterMemory(from).error().code, ErrorCode::kFailedPrecondition);

  std::array<Completion, 8> got;
  while (a->Poll(got) == 0) {
  }
  EXPECT_EQ(got[0].kind, CompletionKind::kWrite);
  EXPECT_EQ(got[0].context, 42u);
  EXPECT_EQ(got[0].code, ErrorCode::kOk);
  while (b->Poll(got) == 0) {
  }
  EXPECT_EQ(got[0].kind, CompletionKind::kImmediate);
  EXPECT_EQ(got[0].immediate, 7u);
  EXPECT_EQ(got[0].peer, Completion::kUnknownPeer);
  EXPECT_EQ(source, target);
  EXPECT_EQ(a->MapRemote(to_b, to.remote_address + 5, to.remote_key, 10), target.data() + 5);
  EXPECT_TRUE(a->DeregisterMemory(from).has_value());
  EXPECT_TRUE(b->DeregisterMemory(to).has_value());
  EXPECT_EQ(a->PostWrite(write), PostResult::kRejected);
}

TEST(LocalDomainBasic, TwoThreads) {
  constexpr uint32_t kCount = 20000;
  auto a = CreateLocalDomain({}).value();
  auto b = CreateLocalDomain({}).value();
  std::vector<uint64_t> source(1), target(1);
  const auto from = a->RegisterMemory(source.data(), 8, MemoryKind::kHost, Access::kLocalOnly).value();
  const auto to = b->RegisterMemory(target.data(), 8, MemoryKind::kHost, Access::kRemoteWrite).value();
  std::thread sender([&] {
    WriteRequest write;
    write.peer = a->AddPeer(b->address()).value();
    write.source = source.data();
    write.local_key = from.local_key;
    write.length = 0;
    write.remote_address = to.remote_address;
    write.remote_key = to.remote_key;
    std::array<Completion, 64> got;
    uint32_t completed = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      write.immediate = i;
      PostResult result;
      while ((result = a->PostWrite(write)) == PostResult::kAgain) completed += a->Poll(got);
      ASSERT_EQ(result, PostResult::kPosted) << a->last_error();
    }
    while (completed < kCount) completed += a->Poll(got);
    EXPECT_EQ(completed, kCount);
  });
  std::vector<int> seen(kCount);
  std::array<Completion, 64> got;
  for (uint32_t n = 0; n < kCount;) {
    const size_t count = b->Poll(got);
    for (size_t i = 0; i < count; ++i) ++seen[got[i].immediate];
    n += count;
  }
  sender.join();
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), static_cast<int>(kCount));
}

}  // namespace
}  // namespace jax_fabric
