#include "csrc/engine/domains/local/mailbox.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace jax_fabric::local {
namespace {

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Status Mailbox::SetGeometry(const MailboxGeometry& g) {
  const bool usable = g.lanes > 0 && g.lanes <= 1u << 16 && g.regions > 0 && g.regions <= 1u << 20 &&
                      std::has_single_bit(g.immediates) && g.immediates <= 1u << 20 &&
                      std::has_single_bit(g.messages) && g.messages <= 1u << 20 &&
                      std::has_single_bit(g.message_bytes) && g.message_bytes >= 64 && g.message_bytes <= 1u << 30 &&
                      g.max_message_bytes <= g.message_bytes / 2;
  if (!usable) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "local mailbox: {} lanes, {} regions, {} immediates, {} messages, {} message bytes, {} bytes a "
                     "message is not a possible layout",
                     g.lanes, g.regions, g.immediates, g.messages, g.message_bytes, g.max_message_bytes);
  }
  geometry_ = g;
  regions_offset_ = kPage + RoundUp(uint64_t{g.lanes} * sizeof(std::atomic<uint64_t>), kPage);
  lanes_offset_ = regions_offset_ + RoundUp(uint64_t{g.regions} * sizeof(RegionEntry), kPage);
  bounces_offset_ =
      RoundUp(sizeof(LaneHeader) + (uint64_t{g.immediates} + g.messages) * sizeof(Slot) + g.message_bytes, kCacheLine);
  lane_stride_ = RoundUp(bounces_offset_ + kBounceSlots * sizeof(BounceSlot), kPage);
  return {};
}

Result<std::shared_ptr<Mailbox>> Mailbox::Create(const MailboxGeometry& geometry, uint64_t incarnation) {
  static_assert(sizeof(MailboxHeader) <= kPage);
  auto mailbox = std::make_shared<Mailbox>();
  JF_RETURN_IF_ERROR(mailbox->SetGeometry(geometry));
  JF_ASSIGN_OR_RETURN(mailbox->memory_,
                      CreateMemoryFile(fmt::format("jax_fabric-mailbox-{:016x}", incarnation), mailbox->TotalBytes()));
  JF_ASSIGN_OR_RETURN(mailbox->mapping_, MemoryMapping::Map(mailbox->memory_.get()));
  mailbox->doorbell_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!mailbox->doorbell_.valid()) {
    return MakeError(ErrorCode::kResourceExhausted, "local domain: eventfd failed: {}", strerror(errno));
  }
  // The rest of the file is zero, which is the initial state of every atomic in it.
  MailboxHeader* header = new (mailbox->mapping_.data()) MailboxHeader();
  header->magic = kMailboxMagic;
  header->incarnation = incarnation;
  header->self_address = reinterpret_cast<uint64_t>(header);
  header->geometry = geometry;
  return mailbox;
}

Result<std::shared_ptr<Mailbox>> Mailbox::Map(UniqueFd memory, UniqueFd doorbell, uint64_t incarnation) {
  auto mailbox = std::make_shared<Mailbox>();
  mailbox->memory_ = std::move(memory);
  mailbox->doorbell_ = std::move(doorbell);
  JF_ASSIGN_OR_RETURN(mailbox->mapping_, MemoryMapping::Map(mailbox->memory_.get()));
  if (mailbox->mapping_.length() < kPage || mailbox->header().magic != kMailboxMagic ||
      mailbox->header().incarnation != incarnation) {
    return MakeError(ErrorCode::kDataLoss, "local domain: what the peer sent is not its mailbox {:016x}", incarnation);
  }
  JF_RETURN_IF_ERROR(mailbox->SetGeometry(mailbox->header().geometry));
  if (mailbox->TotalBytes() != mailbox->mapping_.length()) {
    return MakeError(ErrorCode::kDataLoss, "local domain: mailbox {:016x} has {} bytes, its layout needs {}",
                     incarnation, mailbox->mapping_.length(), mailbox->TotalBytes());
  }
  mailbox->memory_.Close();  // the mapping stays; one descriptor a peer is enough
  return mailbox;
}

void Mailbox::Ring() const {
  // Relaxed is enough: the exchange only picks the one sender that makes the system call.
  if (header().armed.exchange(0, std::memory_order_relaxed) == 0) return;
  const uint64_t one = 1;
  // Can only fail when the counter is at its maximum, and then the owner is awake anyway.
  [[maybe_unused]] const ssize_t ignored = write(doorbell_.get(), &one, sizeof(one));
}

}  // namespace jax_fabric::local
