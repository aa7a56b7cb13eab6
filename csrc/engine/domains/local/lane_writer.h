// The sending end of a lane: how one domain talks to a peer's mailbox. Driven by one thread.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LANE_WRITER_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LANE_WRITER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "csrc/base/status.h"
#include "csrc/engine/domains/local/mailbox.h"
#include "csrc/engine/domains/local/process_identity.h"

namespace jax_fabric::local {

class LaneWriter {
 public:
  // Takes a free lane of the mailbox for the domain `incarnation` of the process `self`.
  static Result<std::unique_ptr<LaneWriter>> Claim(std::shared_ptr<Mailbox> mailbox, const ProcessIdentity& self,
                                                   uint64_t incarnation);
  // Hands the lane to the receiver, who frees it when it has taken everything out.
  ~LaneWriter();
  LaneWriter(const LaneWriter&) = delete;
  LaneWriter& operator=(const LaneWriter&) = delete;

  bool HasImmediateRoom();
  // Room must be there. What this thread wrote before is visible to whoever takes the immediate out.
  void PushImmediate(uint32_t immediate, uint16_t count = 1);

  bool HasMessageRoom(uint64_t length);
  void PushMessage(const void* source, uint64_t length);

  // A slot to carry a piece of a write in, if one is free and the receiver can be told of it.
  std::optional<uint32_t> FreeBounce();
  // `length` is at most kBounceBytes.
  void PushBounce(uint32_t slot, uint64_t key, uint64_t address, const void* source, uint64_t length);
  // What the receiver has done with it; the slot is free again unless that is kFull, nothing yet.
  BounceState TakeBounce(uint32_t slot);

  // While a region is entered its owner does not finish to deregister it, nor to remove this domain. False: the key is
  // not (any more) that of the region, or this domain is refused; nothing was entered.
  bool EnterRegion(uint32_t index, uint64_t key);
  bool refused() const { return header_.refused.load(std::memory_order_relaxed) != 0; }
  void LeaveRegion();

 private:
  LaneWriter(std::shared_ptr<Mailbox> mailbox, uint32_t lane);

  const std::shared_ptr<Mailbox> mailbox_;
  const uint32_t lane_;
  std::atomic<uint64_t>& owner_;
  LaneHeader& header_;
  Slot* const immediates_;
  Slot* const messages_;
  std::byte* const message_bytes_;
  // Own positions, and the receiver's as last seen (it is read again only when the lane seems full).
  uint64_t immediates_put_ = 0;
  uint64_t immediates_taken_ = 0;
  uint64_t messages_put_ = 0;
  uint64_t messages_taken_ = 0;
  uint64_t message_bytes_put_ = 0;
  uint64_t message_bytes_taken_ = 0;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LANE_WRITER_H_
