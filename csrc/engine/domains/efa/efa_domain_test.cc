// What is refused before there is a domain: options, providers and libraries that are not there. And two domains at the
// provider's limits.
#include "csrc/engine/domains/efa/efa_domain.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <vector>

#include "csrc/engine/domains/efa/efa_pair.h"

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

// libfabric's providers may bring libraries that take them, to end the process with a backtrace.
TEST(EfaDomain, CtrlCAndTheOtherSignalsStayThePrograms) {
  ASSERT_TRUE(CreateEfaDomain(Tcp()).has_value());
  for (const int number : {SIGINT, SIGTERM, SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
    struct sigaction action;
    ASSERT_EQ(sigaction(number, nullptr, &action), 0);
    EXPECT_TRUE(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) << number;
  }
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

// Many more than the target's queue has room for, before it is polled at all.
TEST_F(EfaPair, MoreImmediatesThanTheQueueHoldsAreNotLost) {
  EfaDomainOptions small = Tcp();
  small.completion_entries = 8;
  small.max_outstanding = 1;  // the queue has room for those, too
  ASSERT_NO_FATAL_FAILURE(Connect(Tcp(), small));
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
