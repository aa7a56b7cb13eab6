// A mapped mailbox with its doorbell: the owner's and every peer's view of it. Within a process all share one object.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MAILBOX_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MAILBOX_H_

#include <cstdint>
#include <memory>

#include "csrc/base/status.h"
#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/local/mailbox_layout.h"
#include "csrc/engine/domains/local/memory_mapping.h"

namespace jax_fabric::local {

class Mailbox {
 public:
  // By the owner.
  static Result<std::shared_ptr<Mailbox>> Create(const MailboxGeometry& geometry, uint64_t incarnation);
  // By a peer of another process. Everything in the segment is checked against its size.
  static Result<std::shared_ptr<Mailbox>> Map(UniqueFd memory, UniqueFd doorbell, uint64_t incarnation);

  MailboxHeader& header() const { return *reinterpret_cast<MailboxHeader*>(mapping_.data()); }
  // As checked; the copy inside the segment is not looked at again.
  const MailboxGeometry& geometry() const { return geometry_; }

  // LaneOwner; kFree is set by the receiver only.
  std::atomic<uint64_t>& lane_owner(uint32_t lane) const { return At<std::atomic<uint64_t>>(kPage)[lane]; }
  RegionEntry& region(uint32_t index) const { return At<RegionEntry>(regions_offset_)[index]; }
  LaneHeader& lane(uint32_t index) const { return *At<LaneHeader>(LaneOffset(index)); }
  Slot* immediates(uint32_t lane) const { return At<Slot>(LaneOffset(lane) + sizeof(LaneHeader)); }
  Slot* messages(uint32_t lane) const { return immediates(lane) + geometry_.immediates; }
  std::byte* message_bytes(uint32_t lane) const {
    return reinterpret_cast<std::byte*>(messages(lane) + geometry_.messages);
  }
  BounceSlot& bounce(uint32_t lane, uint32_t slot) const {
    return At<BounceSlot>(LaneOffset(lane) + bounces_offset_)[slot];
  }

  bool closed() const {
    // Acquire, with the owner's store in LocalDomain's destructor: what it did before is seen.
    return header().closed.load(std::memory_order_acquire) != 0;
  }

  // Wakes the owner if it sleeps. Call it after a seq_cst store of what the owner shall find.
  //
  // Dekker: sender: store slot, load armed; receiver (LocalDomain::ArmWait): store armed, load slots. All four are
  // seq_cst, so in their single total order either the sender's store comes before the receiver's load (which then
  // finds the slot and does not sleep), or the receiver's store of armed comes before the sender's load (which then
  // sees it and rings).
  void RingIfArmed() const {
    if (header().armed.load(std::memory_order_seq_cst) != 0) Ring();
  }

  // The owner's only; -1 in peers.
  int memory_fd() const { return memory_.get(); }
  int doorbell_fd() const { return doorbell_.get(); }

 private:
  template <typename T>
  T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }
  uint64_t LaneOffset(uint32_t index) const { return lanes_offset_ + index * lane_stride_; }
  Status SetGeometry(const MailboxGeometry& geometry);
  uint64_t TotalBytes() const { return LaneOffset(geometry_.lanes); }
  void Ring() const;

  MemoryMapping mapping_;
  MailboxGeometry geometry_;
  uint64_t regions_offset_ = 0;
  uint64_t lanes_offset_ = 0;
  uint64_t bounces_offset_ = 0;  // in a lane
  uint64_t lane_stride_ = 0;
  UniqueFd memory_;
  UniqueFd doorbell_;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MAILBOX_H_
