// The failure notices of one channel. Each rank has a board, memory into which every other rank may pin one notice; its
// own place holds the one that it sends.
#ifndef JAX_FABRIC_MOE_NOTICE_BOARD_H_
#define JAX_FABRIC_MOE_NOTICE_BOARD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "csrc/engine/domain_group.h"
#include "csrc/moe/failure_notice.h"
#include "csrc/moe/moe_config.h"
#include "csrc/moe/peer_table.h"

namespace jax_fabric::moe {

class NoticeBoard {
 public:
  // Of PeerTable::notice_memory, for all channels. Zeros are an empty board.
  static int64_t MemoryBytes(const MoeConfig& config);

  // All arguments but `channel` outlive the board.
  NoticeBoard(int32_t channel, const MoeConfig& config, const PeerTable& peers, DomainGroup* group)
      : channel_(channel), config_(config), peers_(peers), group_(group) {}

  // Tells all others; each gets the channel's alarm (ChannelImmediate) with it. Those that cannot be told hold back
  // nobody. `sent` when nothing is in flight any more, unless this returns an error. The first notice is told, its own
  // or another's that is handed on; of later ones kAlreadyExists.
  Status Tell(const FailureNotice& notice, WorkerCallback sent);
  // What has not gone by now does not go; `sent` comes soon.
  void Withdraw() { transfer_.Cancel(); }
  // Why another rank does nothing more for this channel; it may have done its part in the exchange that is in flight.
  struct Departure {
    ErrorCode code = ErrorCode::kUnknown;
    std::string words;                    // "rank 2, which is lost: …" or "rank 2, which has given up: …"
    std::optional<FailureNotice> notice;  // to be handed on, unless the rank is lost
    bool is_lost() const { return !notice; }
  };
  std::optional<Departure> DepartureOf(int32_t rank) const;
  // The first notice that has come.
  std::optional<FailureNotice> FirstNotice() const;
  // Of the first rank that is lost, or else has given up, and for which `waiting`(departure, rank). Who hands on a
  // notice may have something to say yet.
  template <typename Waiting>
  std::optional<Departure> FirstDeparture(Waiting waiting) const {
    std::optional<Departure> first;
    for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
      if (rank == peers_.rank || config_.IsAbsent(rank)) continue;
      std::optional<Departure> departure = DepartureOf(rank);
      if (!departure) continue;
      const int32_t gone = departure->is_lost() ? rank : departure->notice->origin;
      if (gone == peers_.rank || !waiting(*departure, gone)) continue;
      if (departure->is_lost()) return departure;
      if (!first) first = std::move(departure);
    }
    return first;
  }

 private:
  // Who has not taken a notice by then has its own deadline: closing must not wait for it.
  static constexpr int64_t kPatienceUs = 1'000'000;
  std::optional<FailureNotice> Read(int32_t rank) const;
  int64_t OffsetOf(int32_t rank) const;
  void* PlaceOf(int32_t rank) const;

  const int32_t channel_;
  const MoeConfig& config_;
  const PeerTable& peers_;
  DomainGroup* const group_;
  bool told_ = false;
  Transfer transfer_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_NOTICE_BOARD_H_
