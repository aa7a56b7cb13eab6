// MessagePool: memory for messages: slots that sends copy into, and the rotating buffers of receives.
#ifndef JAX_FABRIC_ENGINE_MESSAGE_POOL_H_
#define JAX_FABRIC_ENGINE_MESSAGE_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "csrc/base/clock.h"
#include "csrc/base/executor.h"
#include "csrc/base/index_stack.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/driver_request.h"
#include "csrc/engine/group_driver.h"
#include "csrc/engine/message_authenticator.h"
#include "csrc/engine/peer.h"
#include "csrc/engine/requests.h"

namespace jax_fabric {

// Takes the engine's own messages out of those that come.
class MessageFilter {
 public:
  // On the worker. True: the message was not the user's. `peer` as in ReceiveHandler.
  virtual bool Take(const Peer* peer, ByteView message) = 0;

 protected:
  ~MessageFilter() = default;
};

// The first NIC only. Has to outlive the driver: a NIC may write into a posted buffer until its domain is gone.
class MessagePool final : public ReceiveHandler {
 public:
  struct Slot {
    std::byte* data = nullptr;
    uint64_t local_key = 0;
    uint32_t index = 0;
  };

  // Without an authenticator messages travel as they are, and everybody is believed. `max_packet_bytes` is what the NIC
  // takes.
  MessagePool(Executor& executor, std::unique_ptr<MessageAuthenticator> authenticator, uint32_t send_slots,
              uint64_t max_send_bytes, uint64_t max_packet_bytes);
  ~MessagePool();

  // --- sends
  uint64_t max_send_bytes(const Peer& peer) const;
  // Waits like SubmissionPool::Take. The first call allocates and registers the slots.
  Result<Slot> TakeSlot(GroupDriver& driver, const RequestOptions& options);
  // Copies a message of at most max_send_bytes into the slot, ready to be sent; returns how many bytes that are.
  uint64_t Pack(const Slot& slot, ByteView message, Peer& peer);
  void ReturnSlot(uint32_t index);

  // --- receives: once
  Status StartReceives(GroupDriver& driver, ReceiveOptions options);
  bool receiving() const { return receiving_.load(std::memory_order_acquire); }
  // Before the first step.
  void SetFilter(MessageFilter* filter) { filter_ = filter; }
  void OnReceive(const Completion& completion, const Peer* peer) override;
  uint64_t forged() const { return forged_.load(std::memory_order_relaxed); }  // counters only
  uint64_t replayed() const { return replayed_.load(std::memory_order_relaxed); }

 private:
  struct Slab {
    std::unique_ptr<std::byte[]> memory;
    MemoryRegion region;
    std::byte* first = nullptr;
    uint64_t stride = 0;
  };
  // A posted buffer. Goes round: worker posts it, message comes, callback thread shows it, worker posts it again.
  struct Buffer final : DriverRequest {
    void Start(GroupDriver& driver) override;
    MessagePool* pool = nullptr;
    GroupDriver* driver = nullptr;
    std::byte* data = nullptr;
    PeerHandle peer = 0;
    uint64_t length = 0;
    Task deliver;
  };

  static Result<Slab> MakeSlab(Domain& domain, uint32_t count, uint64_t bytes);
  Status MakeSendSlots(GroupDriver& driver);
  uint64_t trailer_bytes() const { return authenticator_ == nullptr ? 0 : MessageAuthenticator::kTrailerBytes; }
  bool IsGenuine(std::span<std::byte> packet, const Peer* peer);

  Executor& executor_;
  const std::unique_ptr<MessageAuthenticator> authenticator_;
  const uint32_t send_slots_;
  const uint64_t max_packet_bytes_;
  std::mutex mutex_;                         // of making the slabs
  std::atomic<bool> has_send_slots_{false};  // release by whoever made them, acquire by whoever looks
  Slab send_slab_;
  IndexStack free_;
  GroupDriver* driver_ = nullptr;

  std::atomic<bool> receiving_{false};  // release by StartReceives, acquire by whoever looks
  MessageFilter* filter_ = nullptr;
  ReceiveOptions receive_;
  Slab receive_slab_;
  std::unique_ptr<Buffer[]> buffers_;
  std::atomic<uint64_t> forged_{0};
  std::atomic<uint64_t> replayed_{0};
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_MESSAGE_POOL_H_
