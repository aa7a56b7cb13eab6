#include "csrc/moe/ticket_book.h"

namespace jax_fabric::moe {

std::optional<int64_t> TicketBook::Issue(uint64_t identity, int64_t finished) {
  if (next_ - finished > AnnouncementRing::kEntries) return std::nullopt;
  const int64_t sequence = next_++;
  identities_[sequence % kRemembered] = identity;
  return sequence;
}

int64_t TicketBook::Read(const AnnouncementRing& ring) {
  int64_t count = 0;
  while (const auto announcement = ring.Read(next_)) {
    identities_[next_ % kRemembered] = announcement->identity;
    unclaimed_[next_ % kRemembered] = true;
    ++next_;
    ++count;
  }
  return count;
}

std::optional<int64_t> TicketBook::Claim(uint64_t identity) {
  const int64_t first = next_ > kRemembered ? next_ - kRemembered : 1;
  for (int64_t sequence = first; sequence < next_; ++sequence) {
    const int64_t entry = sequence % kRemembered;
    if (unclaimed_[entry] && identities_[entry] == identity) {
      unclaimed_[entry] = false;
      return sequence;
    }
  }
  return std::nullopt;
}

}  // namespace jax_fabric::moe
