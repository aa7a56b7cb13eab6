// Two domains over libfabric's provider "efa" on a fake SRD device: its order, its error codes, its limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "csrc/engine/domains/efa/efa_pair.h"
#include "csrc/engine/domains/efa/fake_srd_fabric.h"

namespace jax_fabric {
namespace {

class FakeSrdDomain : public EfaPair, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { fake_srd::SetFaults({}); }
  EfaDomainOptions Options() const {
    EfaDomainOptions options = conformance::FakeSrdOptions(GetParam());
    options.key = nullptr;
    return options;
  }
  void Write(uint32_t immediate) {
    write_.immediate = immediate;
    ASSERT_TRUE(Until([&] { return writer_.domain->PostWrite(write_) == PostResult::kPosted; }));
  }
  std::vector<uint32_t> Immediates() const {
    std::vector<uint32_t> immediates;
    for (const Completion& each : target_.completions) {
      if (each.kind == CompletionKind::kImmediate) immediates.push_back(each.immediate);
    }
    return immediates;
  }
};

// What "efa-direct" has none of: messages of the provider's own.
class FakeSrdProtocol : public FakeSrdDomain {};

TEST_P(FakeSrdDomain, ImmediatesComeInNoOrderAndOnce) {
  fake_srd::SetFaults({.start_delay_us = 2'000});
  ASSERT_NO_FATAL_FAILURE(Connect(Options()));
  constexpr uint32_t kWrites = 500;
  for (uint32_t i = 0; i < kWrites; ++i) ASSERT_NO_FATAL_FAILURE(Write(i));
  ASSERT_TRUE(Until([&] {
    return target_.Count(CompletionKind::kImmediate) == kWrites && writer_.Count(CompletionKind::kWrite) == kWrites;
  }));
  std::vector<uint32_t> immediates = Immediates();
  EXPECT_FALSE(std::is_sorted(immediates.begin(), immediates.end()));
  std::sort(immediates.begin(), immediates.end());
  for (uint32_t i = 0; i < kWrites; ++i) ASSERT_EQ(immediates[i], i);
}

TEST_P(FakeSrdDomain, AKeyThatTheDeviceDoesNotKnowIsRefusedByIt) {
  ASSERT_NO_FATAL_FAILURE(Connect(Options()));
  ASSERT_TRUE(target_.domain->DeregisterMemory(target_.region).has_value());
  std::fill(writer_.memory.begin(), writer_.memory.end(), std::byte{1});
  ASSERT_NO_FATAL_FAILURE(Write(7));
  ASSERT_TRUE(Until([&] { return writer_.Count(CompletionKind::kWrite) == 1; }));
  EXPECT_EQ(writer_.completions.back().code, ErrorCode::kPermissionDenied);
  const std::string& words = writer_.domain->last_error();
  EXPECT_NE(words.find("write of 64 bytes"), std::string::npos) << words;
  EXPECT_NE(words.find("(7)"), std::string::npos) << words;  // EFA's "bad remote address"
  EXPECT_EQ(writer_.domain->peer_state(write_.peer), PeerState::kReady);
  EXPECT_EQ(target_.Count(CompletionKind::kImmediate), 0u);
  EXPECT_EQ(std::count(target_.memory.begin(), target_.memory.end(), std::byte{1}), 0);
}

// Of a target that is not polled meanwhile.
TEST_P(FakeSrdDomain, MoreImmediatesThanReceivesWaitForThem) {
  ASSERT_NO_FATAL_FAILURE(Connect(Options()));
  constexpr uint32_t kWrites = 900;
  for (uint32_t i = 0; i < kWrites; ++i) {
    write_.immediate = i;
    while (writer_.domain->PostWrite(write_) == PostResult::kAgain) writer_.Poll();
  }
  ASSERT_TRUE(Until([&] {
    return target_.Count(CompletionKind::kImmediate) == kWrites && writer_.Count(CompletionKind::kWrite) == kWrites;
  })) << target_.Count(CompletionKind::kImmediate)
      << " immediates, " << writer_.Count(CompletionKind::kWrite) << " writes";
  for (const Completion& each : writer_.completions) EXPECT_EQ(each.code, ErrorCode::kOk);
  EXPECT_EQ(fake_srd::ReadStatistics().overruns, 0u);
}

TEST_P(FakeSrdDomain, ARefusedWriteIsNotOfferedAgainBeforeThePollsThatMayMakeRoom) {
  ASSERT_NO_FATAL_FAILURE(Connect(Options()));
  write_.immediate = 7;
  fake_srd::SetFaults({.send_queue_full = 1});
  ASSERT_EQ(writer_.domain->PostWrite(write_), PostResult::kAgain);
  const uint64_t refused = fake_srd::ReadStatistics().refused_posts;
  EXPECT_GT(refused, 0u);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(writer_.domain->PostWrite(write_), PostResult::kAgain);
  EXPECT_EQ(fake_srd::ReadStatistics().refused_posts, refused);
  fake_srd::SetFaults({});
  ASSERT_NO_FATAL_FAILURE(Write(7));
  ASSERT_TRUE(Until([&] { return target_.Count(CompletionKind::kImmediate) == 1; }));
}

// An error that belongs to no operation ends the process where nobody listens to the provider.
TEST_P(FakeSrdProtocol, AnErrorOfTheProviderItselfIsAnErrorOfAllPeers) {
  ASSERT_NO_FATAL_FAILURE(Connect(Options()));
  const auto back = target_.domain->AddPeer(writer_.domain->address());
  ASSERT_TRUE(back.has_value()) << back.error().message;
  ASSERT_TRUE(Until([&] { return target_.domain->peer_state(*back) == PeerState::kReady; }));
  // What the target has under way itself ends, too.
  fake_srd::SetFaults({.start_delay_us = 1'000'000, .receive_error = 1});
  WriteRequest own;
  own.peer = *back;
  own.source = target_.memory.data();
  own.local_key = target_.region.local_key;
  own.length = 64;
  own.remote_address = writer_.region.remote_address;
  own.remote_key = writer_.region.remote_key;
  ASSERT_EQ(target_.domain->PostWrite(own), PostResult::kPosted);
  fake_srd::SetFaults({.receive_error = 1});
  // A message of the user's; heartbeats would do it, too.
  const SendRequest message{.peer = write_.peer, .source = write_.source, .local_key = write_.local_key, .length = 8};
  ASSERT_EQ(writer_.domain->PostSend(message), PostResult::kPosted);
  ASSERT_TRUE(Until([&] { return target_.Count(CompletionKind::kPeerFault) > 0; }));
  fake_srd::SetFaults({});
  const std::string& words = target_.domain->last_error();
  EXPECT_NE(words.find("the provider says"), std::string::npos) << words;
  EXPECT_EQ(target_.domain->peer_state(*back), PeerState::kFailed);
  EXPECT_TRUE(Until([&] { return target_.Count(CompletionKind::kWrite) == 1; }));
  EXPECT_TRUE(target_.domain->DeregisterMemory(target_.region).has_value());
  const auto again = target_.domain->AddPeer(writer_.domain->address());
  ASSERT_FALSE(again.has_value());
  EXPECT_NE(again.error().message.find("of no use any more"), std::string::npos) << again.error().message;
}

INSTANTIATE_TEST_SUITE_P(Efa, FakeSrdDomain, testing::Values("efa", "efa-direct"),
                         [](const auto& info) { return std::string(info.param) == "efa" ? "efa" : "direct"; });

INSTANTIATE_TEST_SUITE_P(Efa, FakeSrdProtocol, testing::Values("efa"));

}  // namespace
}  // namespace jax_fabric
