// What is special to the local domain within a process; the contract itself is checked by local_conformance_test.
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "csrc/engine/domains/local/copy.h"
#include "csrc/engine/domains/local/local_test_util.h"
#include "csrc/engine/domains/local/write_run.h"

namespace jax_fabric {
namespace {

using local::CopyBytes;
using local::WriteRun;

TEST(LocalDomain, DescriptorsThreadsAndMappingsStayFlat) {
  const auto use = [] {
    auto a = Make();
    auto b = Make();
    const PeerId peer = a->AddPeer(b->address()).value();
    uint64_t word = 1;
    const auto region = Register(*a, &word, 8);
    const auto target = Register(*b, &word, 8);
    EXPECT_EQ(a->PostWrite(MakeWrite(peer, region, target, 0, 1)), PostResult::kPosted);
  };
  use();
  const int descriptors = CountDescriptors(), threads = CountThreads(), mappings = CountMappings();
  for (int i = 0; i < 200; ++i) use();
  EXPECT_EQ(CountDescriptors(), descriptors);
  EXPECT_EQ(CountThreads(), threads);
  EXPECT_EQ(CountMappings(), mappings);
}

TEST(LocalDomain, OneHundredRestartsOfAPeer) {
  auto stays = Make();
  std::vector<Completion> got;
  int descriptors = 0, mappings = 0;
  Bytes stale;
  for (int i = 0; i < 100; ++i) {
    auto peer = Make();
    const PeerId there = stays->AddPeer(peer->address()).value();
    const PeerId here = peer->AddPeer(stays->address()).value();
    uint64_t word = 0;
    const auto region = Register(*stays, &word, 8);
    const auto source = Register(*peer, &word, 8, Access::kLocalOnly);
    ASSERT_EQ(peer->PostWrite(MakeWrite(here, source, region, 0, static_cast<uint32_t>(i))), PostResult::kPosted);
    if (!stale.empty()) {
      EXPECT_EQ(stays->AddPeer(stale).error().code, ErrorCode::kUnavailable);
    }
    stale.assign(peer->address().begin(), peer->address().end());
    peer.reset();
    got.clear();
    ASSERT_TRUE(Until(*stays, got, [&] { return got.size() == 2; }));
    const size_t immediate = got[0].kind == CompletionKind::kPeerFault ? 1 : 0;
    EXPECT_EQ(got[immediate].immediate, static_cast<uint32_t>(i));
    EXPECT_EQ(stays->peer_state(there), PeerState::kFailed);
    stays->RemovePeer(there);
    EXPECT_TRUE(stays->DeregisterMemory(region).has_value());
    if (i == 10) descriptors = CountDescriptors(), mappings = CountMappings();
  }
  EXPECT_EQ(CountDescriptors(), descriptors);
  EXPECT_EQ(CountMappings(), mappings);
}

TEST(LocalDomain, SleeperIsWokenByAnImmediateAMessageAndTheEndOfAPeer) {
  auto sleeper = Make();
  auto sender = Make();
  uint64_t word = 0;
  const auto target = Register(*sleeper, &word, 8);
  const auto source = Register(*sender, &word, 8, Access::kLocalOnly);
  const PeerId peer = sender->AddPeer(sleeper->address()).value();
  ASSERT_TRUE(sleeper->AddPeer(sender->address()).has_value());
  ReceiveRequest receive;
  ASSERT_EQ(sleeper->PostReceive(receive), PostResult::kPosted);
  std::vector<Completion> got;
  for (int what = 0; what < 3; ++what) {
    const size_t before = got.size();
    while (!sleeper->ArmWait()) Until(*sleeper, got, [n = 0]() mutable { return n++ > 0; });
    ASSERT_EQ(got.size(), before);
    pollfd polled = {sleeper->wait_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&polled, 1, 0), 0);
    SendRequest message;
    message.peer = peer;
    PostResult result = PostResult::kPosted;
    if (what == 0) result = sender->PostWrite(MakeWrite(peer, source, target, 0, 1));
    if (what == 1) result = sender->PostSend(message);
    if (what == 2) sender.reset();
    EXPECT_EQ(result, PostResult::kPosted);
    EXPECT_EQ(poll(&polled, 1, 10'000), 1) << what;
    EXPECT_TRUE(Until(*sleeper, got, [&] { return got.size() > before; })) << what;
  }
  EXPECT_EQ(got[0].kind, CompletionKind::kImmediate);
  EXPECT_EQ(got[1].kind, CompletionKind::kReceive);
  EXPECT_EQ(got[2].kind, CompletionKind::kPeerFault);
}

TEST(LocalDomain, NoWakeUpIsLost) {
  constexpr uint32_t kCount = 3000;
  auto ping = Make();
  auto pong = Make();
  uint64_t word = 0;
  const auto ping_region = Register(*ping, &word, 8);
  const auto pong_region = Register(*pong, &word, 8);
  const PeerId to_pong = ping->AddPeer(pong->address()).value();
  const PeerId to_ping = pong->AddPeer(ping->address()).value();
  const auto play = [](Domain& domain, PeerId peer, const MemoryRegion& own, const MemoryRegion& other, bool serve) {
    std::array<Completion, 8> completions;
    for (uint32_t n = 0; n < kCount; ++n) {
      const auto post = [&] { EXPECT_EQ(domain.PostWrite(MakeWrite(peer, own, other, 0, n)), PostResult::kPosted); };
      if (serve) post();
      for (bool came = false; !came;) {
        const size_t count = domain.Poll(completions);
        for (size_t i = 0; i < count; ++i) came |= completions[i].kind == CompletionKind::kImmediate;
        if (came || !domain.ArmWait()) continue;
        pollfd polled = {domain.wait_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&polled, 1, 20'000), 1) << "asleep for ever at " << n;
      }
      if (!serve) post();
    }
  };
  std::thread other([&] { play(*pong, to_ping, pong_region, ping_region, false); });
  play(*ping, to_pong, ping_region, pong_region, true);
  other.join();
}

// Domains come, write to a common target and go, while the target registers and deregisters what they write to and
// frees it at once: nothing may land late. For ThreadSanitizer and AddressSanitizer.
TEST(LocalDomain, StressOfLifetimes) {
  constexpr int kSenders = 4, kLives = 40;
  constexpr uint64_t kShare = 300'000;  // of the target, for each sender: among themselves they must not race
  auto target = Make();
  std::atomic<uint64_t> key{0}, address{0};
  std::atomic<int> running{kSenders};
  std::vector<std::thread> senders;
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&, s] {
      for (int life = 0; life < kLives; ++life) {
        auto domain = Make();
        std::vector<std::byte> source(kShare, static_cast<std::byte>(s));
        const auto from = Register(*domain, source.data(), source.size(), Access::kLocalOnly);
        const PeerId peer = domain->AddPeer(target->address()).value();
        std::vector<Completion> got;
        uint64_t posted = 0;
        for (int i = 0; i < 50; ++i) {
          MemoryRegion to;
          to.remote_key = key.load();
          to.remote_address = address.load() + s * kShare;
          const WriteRequest write = MakeWrite(peer, from, to, i % 10 == 0 ? kShare : i * 50, i);
          posted += domain->PostWrite(write) == PostResult::kPosted;
          Until(*domain, got, [n = 0]() mutable { return n++ > 0; });
        }
        if (life % 2 == 0) {
          EXPECT_TRUE(Until(*domain, got, [&] { return got.size() >= posted; }));
        }
      }
      --running;
    });
  }
  std::vector<Completion> got;
  while (running > 0) {
    auto memory = std::make_unique<std::vector<std::byte>>(kSenders * kShare);
    const auto region = Register(*target, memory->data(), memory->size());
    address = region.remote_address;
    key = region.remote_key;
    Until(*target, got, [n = 0]() mutable { return n++ > 20; });
    EXPECT_TRUE(target->DeregisterMemory(region).has_value());
    std::fill(memory->begin(), memory->end(), std::byte{1});
    memory.reset();
    got.clear();
  }
  for (std::thread& sender : senders) sender.join();
}

TEST(LocalDomain, TargetGoesWhileOthersWriteToIt) {
  for (int round = 0; round < 20; ++round) {
    auto target = Make();
    auto memory = std::make_unique<std::vector<std::byte>>(2 << 20);
    const auto region = Register(*target, memory->data(), memory->size());
    std::atomic<int> ready{0};
    std::vector<std::thread> senders;
    for (int s = 0; s < 2; ++s) {
      senders.emplace_back([&, s, peer_address = Bytes(target->address().begin(), target->address().end())] {
        auto domain = Make();
        std::vector<std::byte> source(1 << 20);
        const auto from = Register(*domain, source.data(), source.size(), Access::kLocalOnly);
        const PeerId peer = domain->AddPeer(peer_address).value();
        ++ready;
        std::vector<Completion> got;
        uint64_t posted = 0;
        for (uint64_t n = 0; domain->peer_state(peer) == PeerState::kReady; ++n) {
          // Each to its own half: among themselves they must not race.
          WriteRequest write = MakeWrite(peer, from, region, n % 8 == 0 ? 1 << 20 : 100, 1);
          write.remote_address += static_cast<uint64_t>(s) << 20;
          posted += domain->PostWrite(write) == PostResult::kPosted;
          Until(*domain, got, [k = 0]() mutable { return k++ > 0; });
        }
        EXPECT_TRUE(Until(*domain, got, [&] { return got.size() >= posted + 1; }));
        int faults = 0;
        for (const Completion& completion : got) faults += completion.kind == CompletionKind::kPeerFault;
        EXPECT_EQ(faults, 1);
        EXPECT_EQ(got.size(), posted + 1);
      });
    }
    std::vector<Completion> got;
    EXPECT_TRUE(Until(*target, got, [&] { return ready == 2 && got.size() > 100; }));
    target.reset();
    memory.reset();
    for (std::thread& sender : senders) sender.join();
  }
}

TEST(LocalDomain, LimitsOfTheTables) {
  LocalDomainOptions options;
  options.max_regions = 2;
  options.max_peers = 1;
  auto domain = Make(options);
  uint64_t word = 0;
  const auto add = [&] { return domain->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kRemoteWrite); };
  const auto first = add().value();
  ASSERT_TRUE(add().has_value());
  EXPECT_EQ(add().error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(domain->DeregisterMemory(first).has_value());
  EXPECT_TRUE(add().has_value());
  const auto cuda = domain->RegisterMemory(&word, 8, MemoryKind::kCuda, Access::kRemoteWrite);
  EXPECT_EQ(cuda.error().code, ErrorCode::kUnimplemented);
  EXPECT_FALSE(domain->RegisterMemory(&word, ~uint64_t{0}, MemoryKind::kHost, Access::kRemoteWrite).has_value());

  auto a = Make();
  auto b = Make();
  const PeerId peer = a->AddPeer(domain->address()).value();
  EXPECT_EQ(b->AddPeer(domain->address()).error().code, ErrorCode::kResourceExhausted);
  a->RemovePeer(peer);
  std::array<Completion, 4> completions;
  domain->Poll(completions);
  EXPECT_TRUE(b->AddPeer(domain->address()).has_value());
  EXPECT_GT(LocalDomainOptions{}.memory_bytes(), 1u << 20);
}

TEST(LocalDomain, MessageThatIsTooLongForItsBufferIsAnError) {
  auto a = Make();
  auto b = Make();
  std::array<std::byte, 64> bytes = {};
  const auto from = Register(*a, bytes.data(), 64, Access::kLocalOnly);
  SendRequest message;
  message.peer = a->AddPeer(b->address()).value();
  message.source = bytes.data();
  message.local_key = from.local_key;
  message.length = 64;
  ASSERT_EQ(a->PostSend(message), PostResult::kPosted);
  ReceiveRequest receive;
  ASSERT_EQ(b->PostReceive(receive), PostResult::kPosted);
  std::array<Completion, 4> completions;
  ASSERT_EQ(b->Poll(completions), 1u);
  EXPECT_EQ(completions[0].code, ErrorCode::kOutOfRange);
  EXPECT_EQ(completions[0].length, 64u);
}

TEST(SharedMemory, RegionsKeepItAlive) {
  auto a = Make();
  auto b = Make();
  std::array<std::byte, 64> bytes = {};
  MemoryRegion region;
  {
    SharedMemory memory = AllocateShared(100).value();
    EXPECT_EQ(memory.size(), 100u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0u);
    region = Register(*b, memory.data(), 100);
  }
  const auto from = Register(*a, bytes.data(), 64, Access::kLocalOnly);
  const PeerId peer = a->AddPeer(b->address()).value();
  EXPECT_EQ(a->PostWrite(MakeWrite(peer, from, region, 64, 1)), PostResult::kPosted);
}

TEST(LocalDomain, WritesThatContinueOneAnotherAreOneRun) {
  WriteRun run;
  EXPECT_EQ(run.Extend(1000, 10), 10u);
  EXPECT_EQ(run.Extend(1010, 500), 510u);
  EXPECT_EQ(run.Extend(1510, 0), 510u);
  EXPECT_EQ(run.Extend(1511, 5), 5u) << "a gap";
  EXPECT_EQ(run.Extend(1000, 7), 7u) << "back";
}

// They go around the cache, and arrive whole.
TEST(LocalDomain, RunsOfWritesArriveWhole) {
  constexpr uint64_t kLength = 3000, kWrites = 40;
  LocalDomainOptions options;
  options.slice_bytes = 700;
  options.streaming_bytes = 10 * kLength;
  auto sender = Make(options);
  auto receiver = Make(options);
  std::vector<std::byte> from(kLength * kWrites), to(kLength * kWrites);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 % 253);
  const MemoryRegion source = Register(*sender, from.data(), from.size(), Access::kLocalOnly);
  const MemoryRegion target = Register(*receiver, to.data(), to.size());
  const PeerId peer = sender->AddPeer(receiver->address()).value();
  for (uint64_t i = 0; i < kWrites; ++i) {
    WriteRequest write = MakeWrite(peer, source, target, kLength, 1);
    write.source = from.data() + i * kLength;
    write.remote_address += i * kLength;
    ASSERT_EQ(sender->PostWrite(write), PostResult::kPosted);
  }
  std::vector<Completion> got;
  ASSERT_TRUE(Until(*sender, got, [&] { return got.size() == kWrites; }));
  EXPECT_EQ(from, to);
}

TEST(CopyBytes, EveryAlignmentAndLength) {
  std::vector<std::byte> source(40'000), target(40'000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i % 251);
  for (const bool streaming : {false, true}) {
    for (size_t offset = 0; offset < 70; offset += 3) {
      for (const size_t length :
           {0u, 1u, 63u, 64u, 255u, 256u, 257u, 400u, 4096u, 4100u, 16'383u, 16'384u, 16'500u, 32'767u, 33'000u}) {
        std::fill(target.begin(), target.end(), std::byte{0xff});
        CopyBytes(target.data() + offset, source.data() + 1, length, streaming);
        ASSERT_EQ(std::memcmp(target.data() + offset, source.data() + 1, length), 0) << offset << " " << length;
        ASSERT_EQ(target[offset + length], std::byte{0xff});
        ASSERT_EQ(target[offset > 0 ? offset - 1 : offset + length], std::byte{0xff});
      }
    }
  }
}

}  // namespace
}  // namespace jax_fabric
