#include "csrc/moe/ticket_book.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace jax_fabric::moe {
namespace {

constexpr int64_t kEntries = AnnouncementRing::kEntries;

struct Ring {
  std::vector<uint64_t> memory = std::vector<uint64_t>(AnnouncementRing::kBytes / 8);
  AnnouncementRing ring{memory.data()};
};

TEST(TicketBook, IssuesAsManyAsTheRingHolds) {
  TicketBook book;
  EXPECT_EQ(book.last_known(), 0);
  for (int64_t i = 1; i <= kEntries; ++i) EXPECT_EQ(book.Issue(100 + i, 0), i);
  EXPECT_EQ(book.Issue(999, 0), std::nullopt);
  EXPECT_EQ(book.last_known(), kEntries);
  EXPECT_EQ(book.Issue(100 + kEntries + 1, 1), kEntries + 1);
  EXPECT_EQ(book.Issue(999, 1), std::nullopt);
  for (int64_t i = 1; i <= kEntries + 1; ++i) EXPECT_EQ(book.IdentityOf(i), static_cast<uint64_t>(100 + i));
}

TEST(TicketBook, ClaimsWhatWasAnnouncedAndNothingElse) {
  Ring ring;
  TicketBook book;
  EXPECT_EQ(book.Read(ring.ring), 0);
  EXPECT_EQ(book.Claim(11), std::nullopt);
  ring.ring.Write({1, 11});
  EXPECT_EQ(book.Claim(11), std::nullopt);  // not read yet
  EXPECT_EQ(book.Read(ring.ring), 1);
  EXPECT_EQ(book.Read(ring.ring), 0);
  EXPECT_EQ(book.Claim(12), std::nullopt);
  EXPECT_EQ(book.Claim(11), 1);
  EXPECT_EQ(book.Claim(11), std::nullopt);
  EXPECT_EQ(book.last_known(), 1);
}

TEST(TicketBook, AGapHidesWhatFollows) {
  Ring ring;
  TicketBook book;
  ring.ring.Write({3, 33});
  ring.ring.Write({2, 22});
  EXPECT_EQ(book.Read(ring.ring), 0);
  EXPECT_EQ(book.Claim(33), std::nullopt);
  ring.ring.Write({1, 11});
  EXPECT_EQ(book.Read(ring.ring), 3);
  EXPECT_EQ(book.Claim(33), 3);
  EXPECT_EQ(book.Claim(11), 1);
  EXPECT_EQ(book.Claim(22), 2);
}

TEST(TicketBook, EqualIdentitiesGoLowestFirst) {
  Ring ring;
  TicketBook book;
  for (int64_t sequence = 1; sequence <= 4; ++sequence) ring.ring.Write({sequence, uint64_t{sequence == 2 ? 5u : 9u}});
  EXPECT_EQ(book.Read(ring.ring), 4);
  EXPECT_EQ(book.Claim(9), 1);
  EXPECT_EQ(book.Claim(9), 3);
  EXPECT_EQ(book.Claim(9), 4);
  EXPECT_EQ(book.Claim(9), std::nullopt);
  EXPECT_EQ(book.Claim(5), 2);
}

// An identity of 0 is one like any other, and entries never written are not taken for it.
TEST(TicketBook, IdentityZero) {
  Ring ring;
  TicketBook book;
  EXPECT_EQ(book.Claim(0), std::nullopt);
  ring.ring.Write({1, 0});
  EXPECT_EQ(book.Read(ring.ring), 1);
  EXPECT_EQ(book.Claim(0), 1);
  EXPECT_EQ(book.Claim(0), std::nullopt);
}

// Rank 0 and another rank with any number of calls outstanding, claimed in any order that the protocol allows.
TEST(TicketBook, RandomOrders) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    Ring ring;
    TicketBook leader, follower;
    std::vector<int64_t> waiting;  // announced and not claimed
    int64_t finished = 0, claimed_up_to = 0;
    std::vector<bool> claimed(1, true);
    while (finished < 200) {
      switch (random() % 3) {
        case 0: {
          const auto sequence = leader.Issue(random() % 3 == 0 ? 7 : 1000 + leader.last_known(), finished);
          ASSERT_EQ(sequence.has_value(), leader.last_known() - finished <= kEntries && sequence.has_value());
          if (!sequence) {
            ASSERT_EQ(leader.last_known() - finished, kEntries);
            break;
          }
          ring.ring.Write({*sequence, leader.IdentityOf(*sequence)});
          waiting.push_back(*sequence);
          claimed.push_back(false);
          break;
        }
        case 1: {
          if (waiting.empty()) break;
          follower.Read(ring.ring);
          const size_t pick = random() % waiting.size();
          const uint64_t identity = leader.IdentityOf(waiting[pick]);
          const auto sequence = follower.Claim(identity);
          ASSERT_TRUE(sequence.has_value()) << seed;
          ASSERT_EQ(leader.IdentityOf(*sequence), identity) << seed;
          const auto found = std::find(waiting.begin(), waiting.end(), *sequence);
          ASSERT_NE(found, waiting.end()) << seed;
          waiting.erase(found);
          claimed[*sequence] = true;
          break;
        }
        case 2: {
          // An exchange is finished only when the follower takes part.
          while (claimed_up_to + 1 < static_cast<int64_t>(claimed.size()) && claimed[claimed_up_to + 1])
            ++claimed_up_to;
          if (finished < claimed_up_to) ++finished;
          break;
        }
      }
    }
  }
}

}  // namespace
}  // namespace jax_fabric::moe
