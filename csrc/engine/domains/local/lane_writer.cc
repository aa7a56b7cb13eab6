#include "csrc/engine/domains/local/lane_writer.h"

#include <cstring>
#include <utility>

namespace jax_fabric::local {

Result<std::unique_ptr<LaneWriter>> LaneWriter::Claim(std::shared_ptr<Mailbox> mailbox, const ProcessIdentity& self,
                                                      uint64_t incarnation) {
  for (uint32_t i = 0; i < mailbox->geometry().lanes; ++i) {
    std::atomic<uint64_t>& owner = mailbox->lane_owner(i);
    uint64_t expected = LaneOwner(LaneState::kFree, 0);
    // Seq_cst: as acquire, with the release in LaneReader::Free: the positions that the receiver left are seen; and
    // before every EnterRegion in the one order that RegionTable::Drain relies on when it skips free lanes.
    if (owner.load(std::memory_order_relaxed) != expected ||
        !owner.compare_exchange_strong(expected, LaneOwner(LaneState::kClaiming, self.pid),
                                       std::memory_order_seq_cst)) {
      continue;
    }
    LaneHeader& lane = mailbox->lane(i);
    lane.owner_start_time.store(self.start_time, std::memory_order_relaxed);
    lane.owner_incarnation.store(incarnation, std::memory_order_relaxed);
    lane.target.store(0, std::memory_order_relaxed);
    lane.refused.store(0, std::memory_order_relaxed);
    for (uint32_t slot = 0; slot < kBounceSlots; ++slot) {
      mailbox->bounce(i, slot).state.store(BounceState::kFree, std::memory_order_relaxed);
    }
    // Release, with the acquire in LaneReader::Open: who owns it is seen with the state.
    owner.store(LaneOwner(LaneState::kActive, self.pid), std::memory_order_release);
    // Seq_cst: part of the Dekker pairing described at Mailbox::RingIfArmed, before the first slot is filled.
    mailbox->header().lane_changes.fetch_add(1, std::memory_order_seq_cst);
    return std::unique_ptr<LaneWriter>(new LaneWriter(std::move(mailbox), i));
  }
  return MakeError(ErrorCode::kResourceExhausted,
                   "peer's mailbox {:016x} has {} lanes and all are taken: raise LocalDomainOptions::max_peers there",
                   mailbox->header().incarnation, mailbox->geometry().lanes);
}

LaneWriter::LaneWriter(std::shared_ptr<Mailbox> mailbox, uint32_t lane)
    : mailbox_(std::move(mailbox)),
      lane_(lane),
      owner_(mailbox_->lane_owner(lane)),
      header_(mailbox_->lane(lane)),
      immediates_(mailbox_->immediates(lane)),
      messages_(mailbox_->messages(lane)),
      message_bytes_(mailbox_->message_bytes(lane)) {
  // Relaxed: ordered by the acquire in Claim.
  immediates_put_ = immediates_taken_ = header_.immediates_taken.load(std::memory_order_relaxed);
  messages_put_ = messages_taken_ = header_.messages_taken.load(std::memory_order_relaxed);
  message_bytes_put_ = message_bytes_taken_ = header_.message_bytes_taken.load(std::memory_order_relaxed);
}

LaneWriter::~LaneWriter() {
  const uint64_t owner = owner_.load(std::memory_order_relaxed);
  // Release, with the acquire in LaneReader::Closing: the last slots are seen before the lane is given up.
  owner_.store(LaneOwner(LaneState::kClosing, LaneOwnerPid(owner)), std::memory_order_release);
  mailbox_->header().lane_changes.fetch_add(1, std::memory_order_seq_cst);
  mailbox_->RingIfArmed();
}

bool LaneWriter::HasImmediateRoom() {
  if (immediates_put_ - immediates_taken_ < mailbox_->geometry().immediates) return true;
  // Acquire, with the release in LaneReader::PublishTaken: the slots are free before we fill them again.
  immediates_taken_ = header_.immediates_taken.load(std::memory_order_acquire);
  return immediates_put_ - immediates_taken_ < mailbox_->geometry().immediates;
}

void LaneWriter::PushImmediate(uint32_t immediate, uint16_t count) {
  const uint32_t slots = mailbox_->geometry().immediates;
  // Seq_cst, with the loads in LaneReader: releases the payload, and is the store of RingIfArmed's pairing.
  immediates_[immediates_put_ % slots].store(MakeSlot(immediates_put_, slots, immediate, count),
                                             std::memory_order_seq_cst);
  ++immediates_put_;
  mailbox_->RingIfArmed();
}

bool LaneWriter::HasMessageRoom(uint64_t length) {
  const MailboxGeometry& geometry = mailbox_->geometry();
  const uint64_t end = PlaceMessage(message_bytes_put_, length, geometry.message_bytes).end;
  const auto fits = [&] {
    return messages_put_ - messages_taken_ < geometry.messages && end - message_bytes_taken_ <= geometry.message_bytes;
  };
  if (fits()) return true;
  // Acquire, with the release in LaneReader::PublishTaken: the receiver is done with the bytes we will overwrite.
  messages_taken_ = header_.messages_taken.load(std::memory_order_acquire);
  message_bytes_taken_ = header_.message_bytes_taken.load(std::memory_order_acquire);
  return fits();
}

void LaneWriter::PushMessage(const void* source, uint64_t length) {
  const MailboxGeometry& geometry = mailbox_->geometry();
  const MessagePlace place = PlaceMessage(message_bytes_put_, length, geometry.message_bytes);
  if (length > 0) std::memcpy(message_bytes_ + place.begin % geometry.message_bytes, source, length);
  message_bytes_put_ = place.end;
  // Seq_cst: as in PushImmediate.
  messages_[messages_put_ % geometry.messages].store(
      MakeSlot(messages_put_, geometry.messages, static_cast<uint32_t>(length)), std::memory_order_seq_cst);
  ++messages_put_;
  mailbox_->RingIfArmed();
}

std::optional<uint32_t> LaneWriter::FreeBounce() {
  if (!HasImmediateRoom()) return std::nullopt;
  for (uint32_t slot = 0; slot < kBounceSlots; ++slot) {
    // Relaxed: only this thread frees slots.
    if (mailbox_->bounce(lane_, slot).state.load(std::memory_order_relaxed) == BounceState::kFree) return slot;
  }
  return std::nullopt;
}

void LaneWriter::PushBounce(uint32_t slot, uint64_t key, uint64_t address, const void* source, uint64_t length) {
  BounceSlot& bounce = mailbox_->bounce(lane_, slot);
  bounce.key = key;
  bounce.address = address;
  bounce.length = static_cast<uint32_t>(length);
  std::memcpy(bounce.bytes, source, length);
  // Relaxed: the immediate's store publishes it with the rest.
  bounce.state.store(BounceState::kFull, std::memory_order_relaxed);
  PushImmediate(slot, kBounceCount);
}

BounceState LaneWriter::TakeBounce(uint32_t slot) {
  std::atomic<BounceState>& state = mailbox_->bounce(lane_, slot).state;
  // Acquire, with the release in LaneReader::FinishBounce: it has read what we will overwrite, and the payload is in
  // its memory before the immediate that we will send.
  const BounceState result = state.load(std::memory_order_acquire);
  if (result != BounceState::kFull) state.store(BounceState::kFree, std::memory_order_relaxed);
  return result;
}

bool LaneWriter::EnterRegion(uint32_t index, uint64_t key) {
  // Dekker with RegionTable::Remove (stores key, loads target) and LaneReader (Refuse, then SenderIsInside), all
  // seq_cst: either they see our target and wait for LeaveRegion, or we see that the key is gone or we are refused.
  header_.target.store(uint64_t{index} + 1, std::memory_order_seq_cst);
  if (mailbox_->region(index).key.load(std::memory_order_seq_cst) == key &&
      header_.refused.load(std::memory_order_seq_cst) == 0) {
    return true;
  }
  LeaveRegion();
  return false;
}

void LaneWriter::LeaveRegion() {
  // Release, with the acquire in RegionTable::Remove: our stores to the region come before the owner goes on.
  header_.target.store(0, std::memory_order_release);
}

}  // namespace jax_fabric::local
