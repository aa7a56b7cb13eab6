// What a domain's mailbox looks like in shared memory: a header, a table of registered regions, and lanes. A lane
// is a single-producer single-consumer channel from one sending domain to the owner of the mailbox:
//
//   [MailboxHeader][owner word x lanes][RegionEntry x regions][lane 0][lane 1]...
//   lane: [LaneHeader][immediate slots][message slots][message bytes][bounce slots]
//
// One lane per sender rather than one ring for all: a sender that dies between claiming and publishing a slot
// stops nobody else, and a push needs no read-modify-write. The segment is sparse, untouched lanes cost nothing.
//
// Who writes which cache line is part of the layout: owner, sender and receiver words never share one.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MAILBOX_LAYOUT_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MAILBOX_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace jax_fabric::local {

inline constexpr uint64_t kMailboxMagic = 0x33584f424c41464aull;  // "JFALBOX3"
inline constexpr uint64_t kCacheLine = 64;
inline constexpr uint64_t kPage = 4096;

struct MailboxGeometry {
  uint32_t lanes = 0;          // senders at one time
  uint32_t regions = 0;        // registered at one time
  uint32_t immediates = 0;     // slots of a lane; a power of two
  uint32_t messages = 0;       // slots of a lane; a power of two
  uint32_t message_bytes = 0;  // payload ring of a lane; a power of two, at least 2 * max_message_bytes
  uint32_t max_message_bytes = 0;

  bool operator==(const MailboxGeometry&) const = default;
};

struct MailboxHeader {
  // Constant from before the first peer can see them.
  uint64_t magic = 0;
  uint64_t incarnation = 0;
  uint64_t self_address = 0;  // of this header in the owner's address space: peers probe process_vm_* with it
  MailboxGeometry geometry;

  alignas(kCacheLine) std::atomic<uint32_t> closed{0};  // 1: the owner is going away
  std::atomic<uint32_t> lane_changes{0};                // counts lanes that were claimed or closed
  alignas(kCacheLine) std::atomic<uint32_t> armed{0};   // 1: the owner sleeps or is about to; ring the bell
};

// A registered range. `key` is 0 while the entry is free; the other fields are constant while it is not, and the
// owner reuses an entry only after no sender is inside it (LaneHeader::target).
struct alignas(kCacheLine) RegionEntry {
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> address;  // in the owner's address space
  std::atomic<uint64_t> length;
  std::atomic<uint64_t> memory_id;      // of the SharedMemory that contains it; 0: other processes cannot map it
  std::atomic<uint64_t> memory_offset;  // of the region's first byte in that memory
  std::atomic<uint32_t> remote_write;   // 1: peers may write
};

// The owner word of a lane: state and pid in one, so that a claimer which dies at any instruction is known. The words
// lie together, so that looking for lanes in use does not touch (and thereby allocate) the pages of the others.
enum class LaneState : uint32_t { kFree = 0, kClaiming = 1, kActive = 2, kClosing = 3 };

constexpr uint64_t LaneOwner(LaneState state, uint32_t pid) { return static_cast<uint64_t>(state) << 32 | pid; }
constexpr LaneState LaneOwnerState(uint64_t owner) { return static_cast<LaneState>(owner >> 32); }
constexpr uint32_t LaneOwnerPid(uint64_t owner) { return static_cast<uint32_t>(owner); }

struct LaneHeader {
  alignas(kCacheLine) std::atomic<uint64_t> owner_start_time;  // of the sender's process; constant while kActive
  std::atomic<uint64_t> owner_incarnation;                     // of the sender's domain; constant while kActive
  std::atomic<uint32_t> refused;  // 1: the receiver has removed the sender, who writes to no region any more
  // Hazard pointer: index + 1 of the region the sender is writing to, else 0. Written by the sender.
  alignas(kCacheLine) std::atomic<uint64_t> target;
  // Positions up to which the receiver has taken things out. They outlive a sender: the next one starts there.
  alignas(kCacheLine) std::atomic<uint64_t> immediates_taken;
  std::atomic<uint64_t> messages_taken;
  std::atomic<uint64_t> message_bytes_taken;
};

// A slot holds a lap tag (16 bits), a count (16 bits) and a value (low half): full when the tag is the one of its
// position. One 8-byte store publishes it, so there is no half-written slot for a crash to leave behind. Its tag is
// else that of the lap before, or 0, so tags may repeat.
using Slot = std::atomic<uint64_t>;
static_assert(Slot::is_always_lock_free);

constexpr uint64_t SlotTag(uint64_t position, uint32_t slots) { return position / slots % 0xffff + 1; }
constexpr uint64_t MakeSlot(uint64_t position, uint32_t slots, uint32_t value, uint16_t count = 1) {
  return SlotTag(position, slots) << 48 | uint64_t{count} << 32 | value;
}
constexpr bool SlotIsFull(uint64_t slot, uint64_t position, uint32_t slots) {
  return slot >> 48 == SlotTag(position, slots);
}
constexpr uint16_t SlotCount(uint64_t slot) { return static_cast<uint16_t>(slot >> 32); }
constexpr uint32_t SlotValue(uint64_t slot) { return static_cast<uint32_t>(slot); }

// An immediate slot with this count says that the bounce slot of its value is full.
inline constexpr uint16_t kBounceCount = 0;
inline constexpr uint32_t kBounceSlots = 2;  // of a lane: one is filled while the other is emptied
inline constexpr uint64_t kBounceBytes = 64 * 1024;

// Who changes it: the sender to kFull and back to kFree, the receiver from kFull to one of the others.
enum class BounceState : uint32_t { kFree = 0, kFull = 1, kLanded = 2, kRefused = 3 };

// A piece of a write to memory that only the receiver can reach, which copies it on.
struct alignas(kCacheLine) BounceSlot {
  std::atomic<BounceState> state;
  uint32_t length;
  uint64_t key;
  uint64_t address;
  alignas(kCacheLine) std::byte bytes[kBounceBytes];
};

// Where a message of `length` bytes lies in the payload ring when the ring position is `position`, and the position
// after it. A message never wraps: it starts over at the ring's beginning when it does not fit before the end.
struct MessagePlace {
  uint64_t begin;
  uint64_t end;
};
constexpr MessagePlace PlaceMessage(uint64_t position, uint64_t length, uint64_t ring_bytes) {
  const uint64_t room = ring_bytes - position % ring_bytes;
  const uint64_t begin = length <= room ? position : position + room;
  return {begin, begin + (length + 15) / 16 * 16};
}

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MAILBOX_LAYOUT_H_
