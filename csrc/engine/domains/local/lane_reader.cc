#include "csrc/engine/domains/local/lane_reader.h"

namespace jax_fabric::local {

std::optional<LaneReader> LaneReader::Open(const Mailbox& mailbox, uint32_t lane) {
  // Acquire, with the release in LaneWriter::Claim or ~LaneWriter: start time and incarnation are those of this owner.
  const uint64_t owner = mailbox.lane_owner(lane).load(std::memory_order_acquire);
  const LaneState state = LaneOwnerState(owner);
  if (state != LaneState::kActive && state != LaneState::kClosing) return std::nullopt;
  return LaneReader(mailbox, lane, owner);
}

LaneReader::LaneReader(const Mailbox& mailbox, uint32_t lane, uint64_t owner)
    : mailbox_(&mailbox),
      owner_(&mailbox.lane_owner(lane)),
      header_(&mailbox.lane(lane)),
      immediates_(mailbox.immediates(lane)),
      messages_(mailbox.messages(lane)),
      message_bytes_(mailbox.message_bytes(lane)),
      lane_(lane),
      sender_pid_(LaneOwnerPid(owner)),
      // Relaxed: ordered by the acquire in Open; the positions were written by this thread.
      sender_start_time_(header_->owner_start_time.load(std::memory_order_relaxed)),
      sender_incarnation_(header_->owner_incarnation.load(std::memory_order_relaxed)),
      immediates_taken_(header_->immediates_taken.load(std::memory_order_relaxed)),
      messages_taken_(header_->messages_taken.load(std::memory_order_relaxed)),
      message_bytes_taken_(header_->message_bytes_taken.load(std::memory_order_relaxed)) {}

bool LaneReader::TakeImmediate(uint32_t& immediate, uint32_t& count) {
  const uint32_t slots = mailbox_->geometry().immediates;
  // Acquire, with the store in LaneWriter::PushImmediate: the write's payload is visible with the immediate.
  const uint64_t slot = immediates_[immediates_taken_ % slots].load(std::memory_order_acquire);
  if (!SlotIsFull(slot, immediates_taken_, slots)) return false;
  immediate = SlotValue(slot);
  count = SlotCount(slot);
  ++immediates_taken_;
  return true;
}

BounceSlot* LaneReader::FrontBounce(uint32_t slot) {
  // Relaxed: the acquire in TakeImmediate has brought the slot.
  if (slot < kBounceSlots) {
    BounceSlot& bounce = mailbox_->bounce(lane_, slot);
    if (bounce.state.load(std::memory_order_relaxed) == BounceState::kFull) return &bounce;
  }
  broken_ = true;
  return nullptr;
}

void LaneReader::FinishBounce(BounceSlot& bounce, BounceState state) {
  // Release, with the acquire in LaneWriter::TakeBounce.
  bounce.state.store(state, std::memory_order_release);
}

std::optional<ByteView> LaneReader::FrontMessage() {
  const MailboxGeometry& geometry = mailbox_->geometry();
  // Acquire, with the store in LaneWriter::PushMessage: the bytes are visible with the slot.
  const uint64_t slot = messages_[messages_taken_ % geometry.messages].load(std::memory_order_acquire);
  if (broken_ || !SlotIsFull(slot, messages_taken_, geometry.messages)) return std::nullopt;
  const uint32_t length = SlotValue(slot);
  if (length > geometry.max_message_bytes) {
    broken_ = true;
    return std::nullopt;
  }
  const uint64_t begin = PlaceMessage(message_bytes_taken_, length, geometry.message_bytes).begin;
  return ByteView(message_bytes_ + begin % geometry.message_bytes, length);
}

void LaneReader::TakeMessage(uint64_t length) {
  message_bytes_taken_ = PlaceMessage(message_bytes_taken_, length, mailbox_->geometry().message_bytes).end;
  ++messages_taken_;
}

void LaneReader::PublishTaken() {
  // Release, with the acquire loads in LaneWriter::Has*Room: we have read what the sender may now overwrite.
  header_->immediates_taken.store(immediates_taken_, std::memory_order_release);
  header_->message_bytes_taken.store(message_bytes_taken_, std::memory_order_release);
  header_->messages_taken.store(messages_taken_, std::memory_order_release);
}

bool LaneReader::HasImmediateAfterArming() const {
  const uint32_t slots = mailbox_->geometry().immediates;
  return SlotIsFull(immediates_[immediates_taken_ % slots].load(std::memory_order_seq_cst), immediates_taken_, slots);
}

bool LaneReader::HasMessageAfterArming() const {
  const uint32_t slots = mailbox_->geometry().messages;
  return !broken_ &&
         SlotIsFull(messages_[messages_taken_ % slots].load(std::memory_order_seq_cst), messages_taken_, slots);
}

bool LaneReader::SenderIsInside() const {
  // Seq_cst (which is acquire too): see LaneWriter::EnterRegion; pairs with the release in LeaveRegion as well.
  return header_->refused.load(std::memory_order_relaxed) != 0 &&
         header_->target.load(std::memory_order_seq_cst) != 0 && !Closing();
}

bool LaneReader::Closing() const {
  // Acquire, with the release in ~LaneWriter: every slot it filled is visible after this.
  return abandoned || LaneOwnerState(owner_->load(std::memory_order_acquire)) == LaneState::kClosing;
}

void LaneReader::Free() {
  PublishTaken();
  // Release, with the acquire in LaneWriter::Claim: the next sender starts at our positions.
  owner_->store(LaneOwner(LaneState::kFree, 0), std::memory_order_release);
}

}  // namespace jax_fabric::local
