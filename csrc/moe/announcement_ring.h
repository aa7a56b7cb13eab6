// How rank 0 tells the others which call is exchange n of a channel. Where rank 0 is absent, the first rank that takes
// part is meant (MoeConfig::Leader).
//
// XLA:CPU starts independent calls of one program in any order, another one on each rank. Exchanges of a channel are
// numbered, so the ranks must agree which call gets which number: rank 0's order is everybody's. A call is known by an
// identity that is equal on all ranks (call_identifier.h).
//
// Entries are written by rank 0, by plain stores where the memory is mapped, by a NIC elsewhere, in any order. An
// entry proves itself by its check word, so that it may be read before its immediate has come.
#ifndef JAX_FABRIC_MOE_ANNOUNCEMENT_RING_H_
#define JAX_FABRIC_MOE_ANNOUNCEMENT_RING_H_

#include <cstdint>
#include <optional>

namespace jax_fabric::moe {

struct Announcement {
  int64_t sequence = 0;
  uint64_t identity = 0;
};

class AnnouncementRing {
 public:
  // Tickets that rank 0 may hand out before the first of them is through on all ranks. Exchange n proves that every
  // rank has read announcement n, so entry n % kEntries is free for n + kEntries once n is finished.
  static constexpr int64_t kEntries = 8;
  static constexpr int64_t kEntryBytes = 32;
  static constexpr int64_t kBytes = kEntries * kEntryBytes;

  explicit AnnouncementRing(void* memory) : words_(static_cast<uint64_t*>(memory)) {}

  static int64_t EntryOffset(int64_t sequence) { return (sequence % kEntries) * kEntryBytes; }
  // Fills an entry, in this process or in mapped memory of a peer. All entries of a fresh ring are invalid.
  void Write(const Announcement& announcement);
  // The announcement of exchange `sequence`, if it has come.
  std::optional<Announcement> Read(int64_t sequence) const;

 private:
  uint64_t* const words_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_ANNOUNCEMENT_RING_H_
