#include "csrc/moe/announcement_ring.h"

#include <atomic>

namespace jax_fabric::moe {
namespace {

uint64_t Check(uint64_t sequence, uint64_t identity) {
  // splitmix64's finaliser over both words: zeroed or half-written entries do not pass.
  uint64_t z = sequence * 0x9e3779b97f4a7c15ull ^ (identity + 0x6a666d31ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

void AnnouncementRing::Write(const Announcement& announcement) {
  uint64_t* entry = words_ + EntryOffset(announcement.sequence) / 8;
  const uint64_t sequence = static_cast<uint64_t>(announcement.sequence);
  std::atomic_ref<uint64_t>(entry[0]).store(sequence, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(entry[1]).store(announcement.identity, std::memory_order_relaxed);
  // release, with the acquire in Read: a reader that sees this check word sees the two words above.
  std::atomic_ref<uint64_t>(entry[2]).store(Check(sequence, announcement.identity), std::memory_order_release);
}

std::optional<Announcement> AnnouncementRing::Read(int64_t sequence) const {
  uint64_t* entry = words_ + EntryOffset(sequence) / 8;
  const uint64_t check = std::atomic_ref<uint64_t>(entry[2]).load(std::memory_order_acquire);
  const uint64_t seen = std::atomic_ref<uint64_t>(entry[0]).load(std::memory_order_relaxed);
  const uint64_t identity = std::atomic_ref<uint64_t>(entry[1]).load(std::memory_order_relaxed);
  if (seen != static_cast<uint64_t>(sequence) || check != Check(seen, identity)) return std::nullopt;
  return Announcement{sequence, identity};
}

}  // namespace jax_fabric::moe
