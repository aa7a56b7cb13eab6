// The receiving end of a lane, in the domain that owns the mailbox. Driven by one thread.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LANE_READER_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LANE_READER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/local/mailbox.h"

namespace jax_fabric::local {

class LaneReader {
 public:
  // Of the lane, if a sender has it. The mailbox must outlive the reader.
  static std::optional<LaneReader> Open(const Mailbox& mailbox, uint32_t lane);

  uint32_t lane() const { return lane_; }
  uint32_t sender_pid() const { return sender_pid_; }
  uint64_t sender_start_time() const { return sender_start_time_; }
  uint64_t sender_incarnation() const { return sender_incarnation_; }

  // The sender as the domain numbers it, kUnknownPeer while it does not know it.
  PeerId peer = Completion::kUnknownPeer;
  // The sender's process is known to be dead: the lane is freed once it is empty.
  bool abandoned = false;

  // With a count of kBounceCount `immediate` is a bounce slot.
  bool TakeImmediate(uint32_t& immediate, uint32_t& count);

  // The full slot of that index. Null: there is none, so that the segment was damaged, and the lane is `broken`.
  BounceSlot* FrontBounce(uint32_t slot);
  // Tells the sender what became of it.
  void FinishBounce(BounceSlot& bounce, BounceState state);

  // The message at the front, valid until TakeMessage. A length above the agreed maximum says that the segment was
  // damaged: then the lane is `broken` and shows nothing more.
  std::optional<ByteView> FrontMessage();
  void TakeMessage(uint64_t length);
  bool broken() const { return broken_; }

  // Tells the sender what was taken; once for many takes.
  void PublishTaken();

  // Whether Take* would find something. Seq_cst loads: the receiver's half of Mailbox::RingIfArmed.
  bool HasImmediateAfterArming() const;
  bool HasMessageAfterArming() const;

  // The sender enters no region any more; what it is in the middle of goes on. Then whether there is such a thing.
  void Refuse() {
    refused_ = true;
    header_->refused.store(1, std::memory_order_seq_cst);
  }
  bool refused() const { return refused_; }
  bool SenderIsInside() const;

  // Whether the sender has given the lane up (or is dead), so that it can be freed once Take* finds nothing.
  bool Closing() const;
  // The lane may be claimed again from here on; the reader is not to be used any more.
  void Free();

 private:
  LaneReader(const Mailbox& mailbox, uint32_t lane, uint64_t owner);

  const Mailbox* mailbox_;
  std::atomic<uint64_t>* owner_;
  LaneHeader* header_;
  const Slot* immediates_;
  const Slot* messages_;
  const std::byte* message_bytes_;
  uint32_t lane_;
  uint32_t sender_pid_;
  uint64_t sender_start_time_;
  uint64_t sender_incarnation_;
  uint64_t immediates_taken_;
  uint64_t messages_taken_;
  uint64_t message_bytes_taken_;
  bool broken_ = false;
  bool refused_ = false;  // our own note: the word in the mailbox could be overwritten by the sender
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LANE_READER_H_
