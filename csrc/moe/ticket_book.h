// The numbering of one channel's exchanges, as one rank knows it. Pure bookkeeping: the channel does the I/O.
#ifndef JAX_FABRIC_MOE_TICKET_BOOK_H_
#define JAX_FABRIC_MOE_TICKET_BOOK_H_

#include <array>
#include <cstdint>
#include <optional>

#include "csrc/moe/announcement_ring.h"

namespace jax_fabric::moe {

class TicketBook {
 public:
  // Rank 0: the next number for a call, unless kEntries tickets are out and not finished.
  std::optional<int64_t> Issue(uint64_t identity, int64_t finished);
  // Other ranks: takes over what rank 0 has announced up to now; returns how many were new.
  int64_t Read(const AnnouncementRing& ring);
  // Other ranks: the number of the call, if announced; each announcement is used once, lowest first.
  std::optional<int64_t> Claim(uint64_t identity);
  // Identity behind a number that was issued or announced.
  uint64_t IdentityOf(int64_t sequence) const { return identities_[sequence % kRemembered]; }
  int64_t last_known() const { return next_ - 1; }

 private:
  // More than can be unfinished at once.
  static constexpr int64_t kRemembered = 2 * AnnouncementRing::kEntries;

  int64_t next_ = 1;  // first number not issued, or not seen announced
  std::array<uint64_t, kRemembered> identities_{};
  std::array<bool, kRemembered> unclaimed_{};
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_TICKET_BOOK_H_
