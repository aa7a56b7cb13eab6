#include "csrc/moe/announcement_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace jax_fabric::moe {
namespace {

constexpr int64_t kWords = AnnouncementRing::kBytes / 8;

TEST(AnnouncementRing, FreshIsEmpty) {
  std::vector<uint64_t> memory(kWords);
  const AnnouncementRing ring(memory.data());
  for (int64_t sequence = 0; sequence < 40; ++sequence) EXPECT_FALSE(ring.Read(sequence).has_value());
}

TEST(AnnouncementRing, ReadsWhatWasWritten) {
  std::vector<uint64_t> memory(kWords);
  AnnouncementRing ring(memory.data());
  for (int64_t sequence = 1; sequence < 50; ++sequence) {
    const uint64_t identity = sequence * 0x1234567890abcdefull;
    EXPECT_FALSE(ring.Read(sequence).has_value());
    ring.Write({sequence, identity});
    const auto read = ring.Read(sequence);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->sequence, sequence);
    EXPECT_EQ(read->identity, identity);
    // The last kEntries are there, and no others.
    const int64_t oldest = sequence - AnnouncementRing::kEntries + 1;
    for (int64_t other = 1; other <= sequence + AnnouncementRing::kEntries; ++other) {
      EXPECT_EQ(ring.Read(other).has_value(), other >= oldest && other <= sequence) << other;
    }
  }
}

TEST(AnnouncementRing, EntriesDoNotOverlap) {
  std::vector<uint64_t> memory(kWords + 2, 0x5555555555555555ull);
  AnnouncementRing ring(memory.data() + 1);
  for (int64_t sequence = 1; sequence <= AnnouncementRing::kEntries; ++sequence) ring.Write({sequence, 9});
  for (int64_t sequence = 1; sequence <= AnnouncementRing::kEntries; ++sequence) {
    EXPECT_TRUE(ring.Read(sequence).has_value());
  }
  EXPECT_EQ(memory.front(), 0x5555555555555555ull);
  EXPECT_EQ(memory.back(), 0x5555555555555555ull);
}

// A NIC may write the bytes of an entry in any order: every mixture of two entries that share a place is refused.
TEST(AnnouncementRing, HalfWrittenEntriesAreRefused) {
  const int64_t sequences[] = {3, 3 + AnnouncementRing::kEntries};
  std::vector<uint64_t> before(kWords), after(kWords);
  AnnouncementRing(before.data()).Write({sequences[0], 0x1111});
  AnnouncementRing(after.data()).Write({sequences[1], 0x2222});
  const int64_t offset = AnnouncementRing::EntryOffset(sequences[0]);
  ASSERT_EQ(offset, AnnouncementRing::EntryOffset(sequences[1]));
  for (const bool fresh : {false, true}) {
    // Bytes of the three words in use, a prefix or a suffix new.
    for (int64_t split = 1; split < 24; ++split) {
      for (const bool prefix : {false, true}) {
        std::vector<uint64_t> memory = fresh ? std::vector<uint64_t>(kWords) : before;
        auto* bytes = reinterpret_cast<std::byte*>(memory.data()) + offset;
        const auto* source = reinterpret_cast<const std::byte*>(after.data()) + offset;
        std::memcpy(prefix ? bytes : bytes + split, prefix ? source : source + split, prefix ? split : 24 - split);
        const AnnouncementRing ring(memory.data());
        const bool is_before = std::memcmp(memory.data(), before.data(), AnnouncementRing::kBytes) == 0;
        const bool is_after = std::memcmp(memory.data(), after.data(), AnnouncementRing::kBytes) == 0;
        EXPECT_EQ(ring.Read(sequences[0]).has_value(), is_before) << split << prefix << fresh;
        EXPECT_EQ(ring.Read(sequences[1]).has_value(), is_after) << split << prefix << fresh;
      }
    }
  }
}

TEST(AnnouncementRing, EveryBitCounts) {
  std::vector<uint64_t> memory(kWords);
  AnnouncementRing ring(memory.data());
  ring.Write({5, 0xabcdef});
  uint64_t* entry = memory.data() + AnnouncementRing::EntryOffset(5) / 8;
  for (int bit = 0; bit < 3 * 64; ++bit) {
    entry[bit / 64] ^= uint64_t{1} << bit % 64;
    EXPECT_FALSE(ring.Read(5).has_value()) << bit;
    entry[bit / 64] ^= uint64_t{1} << bit % 64;
  }
  EXPECT_TRUE(ring.Read(5).has_value());
}

// A reader beside the writer sees whole entries only.
TEST(AnnouncementRing, ReadWhileItIsWritten) {
  constexpr int64_t kRounds = 20'000;
  std::vector<uint64_t> memory(kWords);
  std::atomic<int64_t> read{0};  // release by the reader, acquire by the writer: entries are free for reuse
  std::thread reader([&] {
    const AnnouncementRing ring(memory.data());
    for (int64_t sequence = 1; sequence <= kRounds; ++sequence) {
      auto announcement = ring.Read(sequence);
      while (!announcement) {
        std::this_thread::yield();
        announcement = ring.Read(sequence);
      }
      ASSERT_EQ(announcement->identity, static_cast<uint64_t>(sequence * sequence));
      read.store(sequence, std::memory_order_release);
    }
  });
  AnnouncementRing ring(memory.data());
  for (int64_t sequence = 1; sequence <= kRounds; ++sequence) {
    while (sequence - read.load(std::memory_order_acquire) > AnnouncementRing::kEntries) std::this_thread::yield();
    ring.Write({sequence, static_cast<uint64_t>(sequence * sequence)});
  }
  reader.join();
}

}  // namespace
}  // namespace jax_fabric::moe
