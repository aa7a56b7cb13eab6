// Access to the parts of a message in its slot (layout: moe_layout.h), shared by the CPU kernels.
#ifndef JAX_FABRIC_KERNELS_CPU_MESSAGE_H_
#define JAX_FABRIC_KERNELS_CPU_MESSAGE_H_

#include <cstdint>
#include <cstring>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

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

// Zeroes bytes [begin, end) of a slot: messages hold nothing but what the kernels were given.
inline void ZeroBytes(void* slot, int64_t begin, int64_t end) {
  if (begin < end) std::memset(At<char>(slot, begin), 0, end - begin);
}

inline void ZeroRowPadding(void* row, int64_t used_bytes, int64_t stride) { ZeroBytes(row, used_bytes, stride); }

// What an exchange (one round of a call) moves, as one rank sees it.
struct Volume {
  int64_t rows = 0;     // in messages
  int64_t entries = 0;  // rows of experts that these are copied to or summed from

  // Whether rows of that size are better written past the caches.
  bool PastCaches(int64_t row_bytes, int64_t cache_bytes) const { return (rows + entries) * row_bytes > cache_bytes; }
};

inline int64_t CountSet(const int32_t* begin, int64_t count) {
  int64_t set = 0;
  for (int64_t i = 0; i < count; ++i) set += begin[i] >= 0 ? 1 : 0;
  return set;
}

inline Volume VolumeOf(const MoeShape& shape, const SendRoute& route, const IndexRange& tokens) {
  return {CountSet(route.index + tokens.begin * shape.ranks, tokens.size() * shape.ranks),
          CountSet(route.slot + tokens.begin * shape.top_k, tokens.size() * shape.top_k)};
}

inline Volume VolumeOf(const MoeShape& shape, const ReceiveRoute& route, int32_t round) {
  const int64_t local_top_k = shape.LocalTopK();
  Volume volume;
  for (int64_t s = 0; s < shape.ranks; ++s) {
    const IndexRange rows = RowsInRound(shape, route, s, round);
    const int32_t* positions = route.positions + (s * shape.max_tokens + rows.begin) * local_top_k;
    volume.rows += rows.size();
    volume.entries += CountSet(positions, rows.size() * local_top_k);
  }
  return volume;
}

struct MessageContent {
  int64_t rows = 0;
  int64_t first_row = 0;
  int64_t expert_rows = 0;
  int64_t rounds = 0;
  int64_t payload_offset = 0;
};

// Written last, as far as the order of plain stores goes: whoever looks for an absent peer looks at its header.
inline void WriteHeader(const MessageStamp& stamp, ExchangeKind kind, const MessageContent& content, void* slot) {
  MessageHeader header;
  header.magic = kMessageMagic;
  header.version = kMessageVersion;
  header.kind = static_cast<uint16_t>(kind);
  header.incarnation = stamp.incarnation;
  header.signature = stamp.signature;
  header.sequence = stamp.sequence;
  header.channel = stamp.channel;
  header.membership_epoch = stamp.membership_epoch;
  header.rows = static_cast<uint32_t>(content.rows);
  header.expert_rows = static_cast<uint32_t>(content.expert_rows);
  header.payload_offset = static_cast<uint64_t>(content.payload_offset);
  header.first_row = static_cast<uint32_t>(content.first_row);
  header.rounds = static_cast<uint32_t>(content.rounds);
  std::memcpy(slot, &header, sizeof(header));
}

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_CPU_MESSAGE_H_
