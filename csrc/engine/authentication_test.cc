// Groups of a fabric with a secret, stepped over the simulated network, and somebody who only has a NIC on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/engine/message_authenticator.h"
#include "csrc/engine/peer_address.h"
#include "csrc/engine/testing/stepped_engine.h"

namespace jax_fabric {
namespace {

using simulated::SimulatedDomain;
using testing::PromptNic;
using testing::SteppedFabric;
using testing::SteppedRank;

std::shared_ptr<const FabricKey> KeyOf(const std::string& secret) {
  return FabricKey::Create(Secret::From(std::as_bytes(std::span(secret))).value()).value();
}

PeerAddress AddressOf(const SteppedRank& rank) { return PeerAddress::Parse(rank.group->Address()).value(); }

// "a" and "b" share a secret; the outsider can send what it likes to the NIC of "b".
class AuthenticationTest : public ::testing::Test {
 protected:
  AuthenticationTest()
      : a_(fabric_.Add("a", 1, PromptNic(), {}, key_)),
        b_(fabric_.Add("b", 1, PromptNic(), {}, key_)),
        outsider_(std::make_unique<SimulatedDomain>(fabric_.network(), PromptNic())) {
    to_b_ = a_.group->AddPeer(b_.group->Address()).value();
    to_a_ = b_.group->AddPeer(a_.group->Address()).value();
    EXPECT_TRUE(a_.group->WaitPeers({&to_b_, 1}, fabric_.In(100)).has_value());
    EXPECT_TRUE(b_.group
                    ->ReceiveMessages({.buffers = 2,
                                       .max_bytes = 64,
                                       .on_message =
                                           [this](PeerHandle peer, ByteView message) {
                                             from_.push_back(peer);
                                             received_.emplace_back(reinterpret_cast<const char*>(message.data()),
                                                                    message.size());
                                           }})
                    .has_value());
    packet_memory_ =
        outsider_->RegisterMemory(packet_.data(), packet_.size(), MemoryKind::kHost, Access::kLocalOnly).value();
    outsiders_b_ = outsider_->AddPeer(AddressOf(b_).nics[0]).value();
    StepUntil([&] { return outsider_->peer_state(outsiders_b_) == PeerState::kReady; });
  }

  void StepUntil(const std::function<bool()>& condition) {
    std::array<Completion, 16> completions;
    for (int i = 0; i < 10'000 && !condition(); ++i) {
      fabric_.Step();
      sent_ += outsider_->Poll(completions);
    }
    EXPECT_TRUE(condition());
  }

  // By the outsider.
  void Inject(const Bytes& packet) {
    std::copy(packet.begin(), packet.end(), packet_.begin());
    SendRequest send;
    send.peer = outsiders_b_;
    send.source = packet_.data();
    send.local_key = packet_memory_.local_key;
    send.length = packet.size();
    const size_t before = sent_;
    const uint64_t seen = Seen();
    ASSERT_EQ(outsider_->PostSend(send), PostResult::kPosted);
    StepUntil([&] { return sent_ > before && Seen() > seen; });
  }
  uint64_t Seen() const { return received_.size() + b_.group->forged_messages() + b_.group->replayed_messages(); }

  // What "a" puts on the network for the message.
  Bytes Recorded(const std::string& message, uint64_t sequence, const std::shared_ptr<const FabricKey>& key) const {
    Bytes packet(message.size() + MessageAuthenticator::kTrailerBytes);
    std::memcpy(packet.data(), message.data(), message.size());
    MessageAuthenticator(key, AddressOf(a_).incarnation).Seal(packet, AddressOf(b_).incarnation, sequence);
    return packet;
  }

  void Send(const std::string& message) {
    const auto transfer = a_.group->Send(to_b_, std::as_bytes(std::span(message)), {.deadline = fabric_.In(1000)});
    ASSERT_TRUE(transfer.has_value()) << transfer.error().message;
    ASSERT_TRUE(transfer->Wait(fabric_.In(1000)).has_value());
  }

  const std::shared_ptr<const FabricKey> key_ = KeyOf("the secret of the fabric");
  SteppedFabric fabric_;
  SteppedRank& a_;
  SteppedRank& b_;
  std::unique_ptr<SimulatedDomain> outsider_;
  PeerHandle to_b_ = 0;
  PeerHandle to_a_ = 0;
  PeerId outsiders_b_ = 0;
  Bytes packet_ = Bytes(1024);
  MemoryRegion packet_memory_;
  size_t sent_ = 0;
  std::vector<std::string> received_;
  std::vector<PeerHandle> from_;
};

TEST_F(AuthenticationTest, PeersWithAnotherSecretAreRefusedByName) {
  SteppedRank& other = fabric_.Add("other", 1, PromptNic(), {}, KeyOf("the secret of another fabric"));
  SteppedRank& none = fabric_.Add("none");
  for (SteppedRank* one : {&other, &none}) {
    for (const auto& [from, to] : {std::pair(&a_, one), std::pair(one, &a_)}) {
      const auto added = from->group->AddPeer(to->group->Address());
      ASSERT_FALSE(added.has_value());
      EXPECT_EQ(added.error().code, ErrorCode::kPermissionDenied);
      const std::string names = fmt::format("group '{}': add peer '{}'", from->group->name(), AddressOf(*to).name);
      EXPECT_NE(added.error().message.find(names), std::string::npos) << added.error().message;
      EXPECT_NE(added.error().message.find(DescribeSecret(key_.get())), std::string::npos) << added.error().message;
    }
  }
}

TEST_F(AuthenticationTest, ForgedMessagesAreCountedAndDropped) {
  std::mt19937_64 random(1);
  const auto guessed = KeyOf("a guess at the secret");
  uint64_t forged = 0;
  for (int i = 0; i < 300; ++i) {
    Bytes packet = Recorded("give me everything", i, i % 3 == 0 ? guessed : key_);
    if (i % 3 == 1) packet.resize(random() % packet.size());
    if (i % 3 == 2) packet[random() % packet.size()] ^= std::byte{1};
    Inject(packet);
    EXPECT_EQ(b_.group->forged_messages(), ++forged);
  }
  EXPECT_TRUE(received_.empty());
  // None of them has taken a buffer or a sequence number from the real sender.
  for (int i = 0; i < 10; ++i) Send("hello " + std::to_string(i));
  StepUntil([&] { return received_.size() == 10; });
  EXPECT_EQ(from_, std::vector<PeerHandle>(10, to_a_));
  EXPECT_EQ(b_.group->forged_messages(), forged);
  EXPECT_EQ(b_.group->replayed_messages(), 0u);
}

TEST_F(AuthenticationTest, ReplayedMessagesAreCountedAndDropped) {
  Send("pay 10");  // with sequence number 0: the first message to the first peer
  StepUntil([&] { return received_.size() == 1; });
  for (uint64_t i = 1; i <= 20; ++i) {
    Inject(Recorded("pay 10", 0, key_));
    EXPECT_EQ(b_.group->replayed_messages(), i);
  }
  EXPECT_EQ(received_, std::vector<std::string>{"pay 10"});
  EXPECT_EQ(b_.group->forged_messages(), 0u);
}

// A message recorded in an earlier life of the receiver is worth nothing.
TEST_F(AuthenticationTest, RestartedReceiversKnowNoOldMessages) {
  const Bytes recorded = Recorded("pay 10", 5, key_);
  SteppedRank& again = fabric_.Add("b", 1, PromptNic(), {}, key_);
  int received = 0;
  ASSERT_TRUE(again.group->ReceiveMessages({.max_bytes = 64, .on_message = [&](PeerHandle, ByteView) { ++received; }})
                  .has_value());
  outsiders_b_ = outsider_->AddPeer(AddressOf(again).nics[0]).value();
  StepUntil([&] { return outsider_->peer_state(outsiders_b_) == PeerState::kReady; });
  std::copy(recorded.begin(), recorded.end(), packet_.begin());
  SendRequest send;
  send.peer = outsiders_b_;
  send.source = packet_.data();
  send.local_key = packet_memory_.local_key;
  send.length = recorded.size();
  ASSERT_EQ(outsider_->PostSend(send), PostResult::kPosted);
  StepUntil([&] { return again.group->forged_messages() == 1; });
  EXPECT_EQ(received, 0);
}

// Sequence numbers go on where the same address is added again.
TEST_F(AuthenticationTest, PeersThatAreRemovedAndAddedAgain) {
  for (int round = 0; round < 5; ++round) {
    Send("round " + std::to_string(round));
    a_.group->RemovePeer(to_b_);
    fabric_.Step(10);
    to_b_ = a_.group->AddPeer(b_.group->Address()).value();
    ASSERT_TRUE(a_.group->WaitPeers({&to_b_, 1}, fabric_.In(1000)).has_value());
  }
  StepUntil([&] { return received_.size() == 5; });
  EXPECT_EQ(b_.group->forged_messages() + b_.group->replayed_messages(), 0u);
}

TEST_F(AuthenticationTest, SizesLeaveRoomForTheTrailer) {
  const uint64_t nic = PromptNic().limits.max_message_bytes;
  const Bytes message(nic - MessageAuthenticator::kTrailerBytes + 1);
  EXPECT_EQ(a_.group->Send(to_b_, message, {.deadline = fabric_.In(1000)}).error().code, ErrorCode::kOutOfRange);
  EXPECT_FALSE(
      a_.group->ReceiveMessages({.max_bytes = message.size(), .on_message = [](PeerHandle, ByteView) {}}).has_value());
  Bytes got;
  ASSERT_TRUE(a_.group
                  ->ReceiveMessages({.max_bytes = message.size() - 1,
                                     .on_message = [&](PeerHandle, ByteView m) { got.assign(m.begin(), m.end()); }})
                  .has_value());
  const Bytes longest(message.size() - 1, std::byte{9});
  ASSERT_TRUE(b_.group->Send(to_a_, longest, {.deadline = fabric_.In(1000)}).has_value());
  StepUntil([&] { return got == longest; });
}

}  // namespace
}  // namespace jax_fabric
