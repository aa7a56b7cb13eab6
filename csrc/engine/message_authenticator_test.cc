// Messages with a trailer, and what is remembered of those that came.
#include "csrc/engine/message_authenticator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "csrc/engine/domain.h"
#include "csrc/engine/replay_filter.h"

namespace jax_fabric {
namespace {

using Verdict = MessageAuthenticator::Verdict;

constexpr uint64_t kAlice = 0xa11ce;
constexpr uint64_t kBob = 0xb0b;

std::shared_ptr<const FabricKey> KeyOf(const std::string& secret) {
  return FabricKey::Create(Secret::From(std::as_bytes(std::span(secret))).value()).value();
}

const std::shared_ptr<const FabricKey> kKey = KeyOf("the secret of the fabric");

Bytes Packet(const std::string& message, uint64_t sequence, uint64_t from = kAlice, uint64_t to = kBob,
             const std::shared_ptr<const FabricKey>& key = kKey) {
  Bytes packet(message.size() + MessageAuthenticator::kTrailerBytes);
  std::memcpy(packet.data(), message.data(), message.size());
  MessageAuthenticator(key, from).Seal(packet, to, sequence);
  return packet;
}

TEST(MessageAuthenticator, OnceFromWhoSaysSo) {
  MessageAuthenticator bob(kKey, kBob);
  for (const std::string& message : {std::string(), std::string("hello"), std::string(8192, 'x')}) {
    Bytes packet = Packet(message, message.size());
    const Bytes recorded = packet;
    EXPECT_EQ(bob.Open(packet, kAlice), Verdict::kGenuine);
    EXPECT_EQ(std::memcmp(packet.data(), message.data(), message.size()), 0);
    for (const uint64_t expected : {kAlice, uint64_t{0}}) {
      Bytes again = recorded;
      EXPECT_EQ(bob.Open(again, expected), Verdict::kReplayed);
    }
  }
}

TEST(MessageAuthenticator, ForgeriesAreNotRemembered) {
  MessageAuthenticator bob(kKey, kBob);
  const Bytes good = Packet("pay 10 to carol", 7);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(bob.Open(bad, 0), Verdict::kForged) << bit;
  }
  for (size_t length = 0; length < good.size(); ++length) {
    Bytes bad(good.begin(), good.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_EQ(bob.Open(bad, 0), Verdict::kForged) << length;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(bob.Open(longer, 0), Verdict::kForged);
  Bytes to_another = Packet("pay 10 to carol", 7, kAlice, kBob + 1);
  EXPECT_EQ(bob.Open(to_another, kAlice), Verdict::kForged);
  Bytes with_another_secret = Packet("pay 10 to carol", 7, kAlice, kBob, KeyOf("a secret of somebody else"));
  EXPECT_EQ(bob.Open(with_another_secret, kAlice), Verdict::kForged);
  // A member of the fabric must not speak for another one where the NIC knows who it is.
  Bytes by_carol = Packet("pay 10 to carol", 7);
  EXPECT_EQ(bob.Open(by_carol, /*expected_sender=*/0xca401), Verdict::kForged);
  Bytes packet = good;
  EXPECT_EQ(bob.Open(packet, kAlice), Verdict::kGenuine);
}

TEST(MessageAuthenticator, SendersHaveSequencesOfTheirOwn) {
  MessageAuthenticator bob(kKey, kBob);
  for (uint64_t sender = 1; sender <= 100; ++sender) {
    Bytes packet = Packet("x", 3, sender);
    Bytes again = packet;
    EXPECT_EQ(bob.Open(packet, sender), Verdict::kGenuine);
    EXPECT_EQ(bob.Open(again, sender), Verdict::kReplayed);
  }
}

// Against a set of all numbers seen.
TEST(ReplayFilter, AnyOrder) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 random(seed);
    ReplayFilter filter;
    std::set<uint64_t> seen;
    uint64_t newest = 0;
    int i = 0;
    for (; filter.missing_ranges() < ReplayFilter::kMaxMissingRanges; ++i) {
      // Mostly near the newest one, sometimes far ahead, sometimes anything that was before.
      const uint64_t kind = random() % 100;
      const uint64_t sequence = kind == 0          ? random() % (newest + 1)
                                : kind == 1        ? newest + random() % 1'000'000'000
                                : newest + 30 < 60 ? random() % 60
                                                   : newest - 30 + random() % 40;
      newest = std::max(newest, sequence);
      EXPECT_EQ(filter.Accept(sequence), seen.insert(sequence).second) << seed << " " << i << " " << sequence;
    }
    EXPECT_GT(i, 5000);
  }
}

TEST(ReplayFilter, NothingIsMissingWhenAllHaveCome) {
  std::vector<uint64_t> sequences(5000);
  for (size_t i = 0; i < sequences.size(); ++i) sequences[i] = i;
  std::mt19937_64 random(1);
  std::shuffle(sequences.begin(), sequences.end(), random);
  ReplayFilter filter;
  for (const uint64_t sequence : sequences) EXPECT_TRUE(filter.Accept(sequence));
  EXPECT_EQ(filter.missing_ranges(), 0u);
  for (const uint64_t sequence : sequences) EXPECT_FALSE(filter.Accept(sequence));
}

TEST(ReplayFilter, IsBoundedAndGivesUpTheOldestFirst) {
  ReplayFilter filter;
  constexpr uint64_t kRanges = ReplayFilter::kMaxMissingRanges;
  for (uint64_t i = 0; i <= kRanges; ++i) EXPECT_TRUE(filter.Accept(2 * i + 1));  // the even ones are missing
  EXPECT_EQ(filter.missing_ranges(), kRanges);
  EXPECT_FALSE(filter.Accept(0));
  EXPECT_TRUE(filter.Accept(2));
  EXPECT_TRUE(filter.Accept(2 * kRanges));
  EXPECT_EQ(filter.missing_ranges(), kRanges - 2);
  // One long range in two.
  EXPECT_TRUE(filter.Accept(1'000'000'000));
  EXPECT_TRUE(filter.Accept(500'000'000));
  EXPECT_EQ(filter.missing_ranges(), kRanges);
  EXPECT_TRUE(filter.Accept(600'000'000));
  EXPECT_EQ(filter.missing_ranges(), kRanges);
  EXPECT_FALSE(filter.Accept(4));
  EXPECT_TRUE(filter.Accept(6));
  EXPECT_FALSE(filter.Accept(600'000'000));
  EXPECT_FALSE(filter.Accept(std::numeric_limits<uint64_t>::max()));
  EXPECT_TRUE(filter.Accept(std::numeric_limits<uint64_t>::max() - 1));
  EXPECT_FALSE(filter.Accept(std::numeric_limits<uint64_t>::max() - 1));
}

}  // namespace
}  // namespace jax_fabric
