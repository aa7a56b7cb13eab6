#include "csrc/moe/notice_board.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace jax_fabric::moe {

int64_t NoticeBoard::MemoryBytes(const MoeConfig& config) {
  return config.channels * config.layout.shape.ranks * FailureNotice::kBytes;
}

int64_t NoticeBoard::OffsetOf(int32_t rank) const {
  return (int64_t{channel_} * config_.layout.shape.ranks + rank) * FailureNotice::kBytes;
}

void* NoticeBoard::PlaceOf(int32_t rank) const {
  return static_cast<std::byte*>(peers_.notice_memory.address) + OffsetOf(rank);
}

Status NoticeBoard::Tell(const FailureNotice& notice, WorkerCallback sent) {
  const Deadline deadline = Deadline::After(group_->clock(), std::min(config_.timeout_us, kPatienceUs));
  if (told_) return MakeError(ErrorCode::kAlreadyExists, "a notice was told before");
  void* const own = PlaceOf(peers_.rank);
  notice.WriteTo(own);
  std::vector<ScatterEntry> entries;
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == peers_.rank || config_.IsAbsent(rank)) continue;
    ScatterEntry entry;
    entry.peer = peers_.peers[rank].handle;
    entry.source_memory = peers_.notice_memory;
    entry.source = own;
    entry.target = &peers_.peers[rank].notices;
    entry.target_offset = OffsetOf(peers_.rank);
    entry.length = FailureNotice::kBytes;
    entry.immediate = peers_.Immediate(rank, channel_, ChannelImmediate::kAlarm);
    entries.push_back(entry);
  }
  JF_ASSIGN_OR_RETURN(transfer_,
                      group_->Scatter(entries, {.deadline = deadline, .wait_for_room = false, .on_worker = sent}));
  told_ = true;
  return {};
}

std::optional<FailureNotice> NoticeBoard::FirstNotice() const {
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == peers_.rank) continue;
    if (std::optional<FailureNotice> notice = Read(rank)) return notice;
  }
  return std::nullopt;
}

std::optional<NoticeBoard::Departure> NoticeBoard::DepartureOf(int32_t rank) const {
  const Status status = group_->PeerStatus(peers_.peers[rank].handle);
  std::optional<FailureNotice> notice = Read(rank);
  if (status) {
    if (!notice) return std::nullopt;
    std::string words = fmt::format("rank {}, which has given up: {}", notice->origin, notice->reason);
    return Departure{notice->code, std::move(words), std::move(notice)};
  }
  std::string words = fmt::format("rank {}, which is lost: {}", rank, status.error().message);
  // The first cause, which may have been another's.
  if (notice && notice->origin != peers_.rank) {
    const std::string who = notice->origin == rank ? "it" : fmt::format("rank {}", notice->origin);
    words += fmt::format(". Before that {} had given up: {}", who, notice->reason);
  }
  return Departure{ErrorCode::kUnavailable, std::move(words), {}};
}

std::optional<FailureNotice> NoticeBoard::Read(int32_t rank) const {
  std::optional<FailureNotice> notice = FailureNotice::ReadFrom(PlaceOf(rank));
  const bool known = notice && notice->origin >= 0 && notice->origin < config_.layout.shape.ranks;
  return known ? notice : std::nullopt;
}

}  // namespace jax_fabric::moe
