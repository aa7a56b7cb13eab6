// Access to the parts of a message in its slot (layout: moe_layout.h), shared by the CPU kernels.
#ifndef JAX_FABRIC_KERNELS_CPU_MESSAGE_H_
#define JAX_FABRIC_KERNELS_CPU_MESSAGE_H_

#include <cstdint>
#include <cstring>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {

template <typename T>
T* At(void* slot, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(slot) + offset);
}
template <typename T>
const T* At(const void* slot, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(slot) + offset);
}

inline const MessageHeader& HeaderOf(const void* slot) { return *At<MessageHeader>(slot, 0); }

// A value from an array that went through the program (a route), made safe to use as an index: -1 unless in [0, bound).
inline int64_t IndexBelow(int32_t value, int64_t bound) {
  return static_cast<uint32_t>(value) < static_cast<uint64_t>(bound) ? value : -1;
}

inline int64_t CountBelow(int32_t value, int64_t bound) { return value < 0 ? 0 : value < bound ? value : bound; }

// Zeroes bytes [begin, end) of a slot: messages hold nothing but what the kernels were given.
inline void ZeroBytes(void* slot, int64_t begin, int64_t end) {
  if (begin < end) std::memset(At<char>(slot, begin), 0, end - begin);
}

inline void ZeroRowPadding(void* row, int64_t used_bytes, int64_t stride) { ZeroBytes(row, used_bytes, stride); }

// Written last, as far as the order of plain stores goes: whoever looks for an absent peer looks at its header.
inline void WriteHeader(const MessageStamp& stamp, ExchangeKind kind, int64_t rows, int64_t expert_rows,
                        int64_t payload_offset, void* slot) {
  MessageHeader header;
  header.magic = kMessageMagic;
  header.version = kMessageVersion;
  header.kind = static_cast<uint16_t>(kind);
  header.incarnation = stamp.incarnation;
  header.signature = stamp.signature;
  header.sequence = stamp.sequence;
  header.channel = stamp.channel;
  header.membership_epoch = stamp.membership_epoch;
  header.rows = static_cast<uint32_t>(rows);
  header.expert_rows = static_cast<uint32_t>(expert_rows);
  header.payload_offset = static_cast<uint64_t>(payload_offset);
  std::memcpy(slot, &header, sizeof(header));
}

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_CPU_MESSAGE_H_
