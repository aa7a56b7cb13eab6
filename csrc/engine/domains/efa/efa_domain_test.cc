// What is refused before there is a domain: options, providers and libraries that are not there. And two domains at the
// provider's limits.
#include "csrc/engine/domains/efa/efa_domain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <vector>

namespace jax_fabric {
namespace {

EfaDomainOptions Tcp() {
  EfaDomainOptions options;
  options.provider = "tcp;ofi_rxm";
  options.source_address = "127.0.0.1";
  return options;
}

TEST(EfaDomain, AMissingLibrarySaysWhatToInstall) {
  EfaDomainOptions options = Tcp();
  options.library = "libfabric_that_is_not_there.so.1";
  const auto domain = CreateEfaDomain(options);
  ASSERT_FALSE(domain.has_value());
  EXPECT_EQ(domain.error().code, ErrorCode::kNotFound);
  EXPECT_NE(domain.error().message.find(options.library), std::string::npos) << domain.error().message;
  EXPECT_NE(domain.error().message.find("apt-get install libfabric1"), std::string::npos) << domain.error().message;
}

TEST(EfaDomain, AMissingProviderSaysWhatWasFound) {
  EfaDomainOptions options;
  options.provider = "no_such_provider";
  const auto domain = CreateEfaDomain(options);
  ASSERT_FALSE(domain.has_value());
  EXPECT_NE(domain.error().message.find("no_such_provider"), std::string::npos) << domain.error().message;
  EXPECT_NE(domain.error().message.find("tcp"), std::string::npos) << domain.error().message;
}

TEST(EfaDomain, OptionsThatCannotWorkAreNamed) {
  EfaDomainOptions options = Tcp();
  options.peer_timeout_us = options.heartbeat_interval_us;
  EXPECT_NE(CreateEfaDomain(options).error().message.find("peer_timeout_us"), std::string::npos);
  options = Tcp();
  options.message_credits = 0;
  EXPECT_NE(CreateEfaDomain(options).error().message.find("message_credits"), std::string::npos);
}

TEST(EfaDomain, PeersOfAnotherProviderAreRefused) {
  auto domain = CreateEfaDomain(Tcp());
  ASSERT_TRUE(domain.has_value()) << domain.error().message;
  EfaDomainOptions options;
  options.provider = "shm";
  auto other = CreateEfaDomain(options);
  ASSERT_TRUE(other.has_value()) << other.error().message;
  const auto peer = (*domain)->AddPeer((*other)->address());
  ASSERT_FALSE(peer.has_value());
  EXPECT_NE(peer.error().message.find("shm"), std::string::npos) << peer.error().message;
  EXPECT_EQ((*domain)->kind(), DomainKind::kEfa);
  EXPECT_GT((*domain)->limits().max_outstanding, 0u);
}

TEST(EfaDomain, ShmDoesNotConnectTwoDomainsOfOneProcess) {
  EfaDomainOptions options;
  options.provider = "shm";
  auto one = CreateEfaDomain(options);
  auto other = CreateEfaDomain(options);
  ASSERT_TRUE(one.has_value()) << one.error().message;
  ASSERT_TRUE(other.has_value()) << other.error().message;
  const auto peer = (*one)->AddPeer((*other)->address());
  ASSERT_FALSE(peer.has_value());
  EXPECT_NE(peer.error().message.find("one process for each rank"), std::string::npos) << peer.error().message;
}

// Two domains in this thread, and memory of the second one that the first may write to.
class EfaPair : public testing::Test {
 protected:
  struct Side {
    std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
    std::unique_ptr<Domain> domain;
    MemoryRegion region;
    std::vector<Completion> completions;

    void Poll() {
      std::array<Completion, 32> found;
      const size_t count = domain->Poll(found);
      completions.insert(completions.end(), found.begin(), found.begin() + static_cast<ptrdiff_t>(count));
    }
    size_t Count(CompletionKind kind) const {
      return static_cast<size_t>(std::count_if(completions.begin(), completions.end(),
                                               [&](const Completion& each) { return each.kind == kind; }));
    }
  };
  static constexpr uint64_t kBytes = 4096;

  void Connect(const EfaDomainOptions& options) {
    for (Side* side : {&writer_, &target_}) {
      auto domain = CreateEfaDomain(options);
      ASSERT_TRUE(domain.has_value()) << domain.error().message;
      side->domain = std::move(*domain);
      const auto region =
          side->domain->RegisterMemory(side->memory.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite);
      ASSERT_TRUE(region.has_value()) << region.error().message;
      side->region = *region;
    }
    const auto peer = writer_.domain->AddPeer(target_.domain->address());
    ASSERT_TRUE(peer.has_value()) << peer.error().message;
    ASSERT_TRUE(Until([&] { return writer_.domain->peer_state(*peer) == PeerState::kReady; }));
    write_.peer = *peer;
    write_.source = writer_.memory.data();
    write_.local_key = writer_.region.local_key;
    write_.length = 64;
    write_.remote_address = target_.region.remote_address;
    write_.remote_key = target_.region.remote_key;
  }

  // Polls both until it holds; false: not within 20 s.
  bool Until(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > end) return false;
      writer_.Poll();
      target_.Poll();
    }
    return true;
  }

  Side writer_, target_;
  WriteRequest write_;
};

// Many more than the target's queue has room for, before it is polled at all.
TEST_F(EfaPair, MoreImmediatesThanTheQueueHoldsAreNotLost) {
  EfaDomainOptions options = Tcp();
  options.completion_entries = 8;
  ASSERT_NO_FATAL_FAILURE(Connect(options));
  constexpr uint32_t kWrites = 400;
  for (uint32_t i = 0; i < kWrites; ++i) {
    write_.immediate = i;
    write_.length = i % 2 * 64;
    while (writer_.domain->PostWrite(write_) == PostResult::kAgain) {
      writer_.Poll();
      if (writer_.domain->limits().max_outstanding < kWrites) target_.Poll();
    }
  }
  ASSERT_TRUE(Until([&] {
    return target_.Count(CompletionKind::kImmediate) == kWrites && writer_.Count(CompletionKind::kWrite) == kWrites;
  })) << target_.Count(CompletionKind::kImmediate)
      << " immediates, " << writer_.Count(CompletionKind::kWrite) << " writes";
  std::vector<bool> seen(kWrites);
  for (const Completion& each : target_.completions) {
    if (each.kind != CompletionKind::kImmediate) continue;
    ASSERT_LT(each.immediate, kWrites);
    EXPECT_FALSE(seen[each.immediate]) << each.immediate << " came twice";
    seen[each.immediate] = true;
  }
  for (const Completion& each : writer_.completions) EXPECT_EQ(each.code, ErrorCode::kOk);
}

// A key that was given once: this side lets it pass, and the provider at the other one does not know it any more.
TEST_F(EfaPair, AKeyThatTheProviderDoesNotKnowFailsItsWriteAlone) {
  ASSERT_NO_FATAL_FAILURE(Connect(Tcp()));
  ASSERT_TRUE(target_.domain->DeregisterMemory(target_.region).has_value());
  std::fill(writer_.memory.begin(), writer_.memory.end(), std::byte{1});
  write_.immediate = 7;
  ASSERT_EQ(writer_.domain->PostWrite(write_), PostResult::kPosted);
  ASSERT_TRUE(Until([&] { return writer_.Count(CompletionKind::kWrite) == 1; }));
  EXPECT_NE(writer_.completions.back().code, ErrorCode::kOk);
  EXPECT_NE(writer_.domain->last_error().find("write of 64 bytes"), std::string::npos) << writer_.domain->last_error();
  EXPECT_EQ(writer_.domain->peer_state(write_.peer), PeerState::kReady);
  EXPECT_EQ(target_.Count(CompletionKind::kImmediate), 0u);
  EXPECT_EQ(std::count(target_.memory.begin(), target_.memory.end(), std::byte{1}), 0);
}

}  // namespace
}  // namespace jax_fabric
