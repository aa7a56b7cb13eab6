// The message of a rank that takes no part: what a receive kernel finds in the slot of one that is absent.
#ifndef JAX_FABRIC_KERNELS_EMPTY_MESSAGE_H_
#define JAX_FABRIC_KERNELS_EMPTY_MESSAGE_H_

#include <cstdint>
#include <cstring>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {

// No rows, for any rank and in any round; passes CheckMessage for `stamp`.
inline void WriteEmptyMessage(const SlotLayout& layout, ExchangeKind kind, const MessageStamp& stamp, int32_t round,
                              void* slot) {
  std::memset(slot, 0, static_cast<size_t>(layout.RowMetaOffset()));
  const bool with_metadata = kind == ExchangeKind::kDispatch && round == 0;
  auto* header = static_cast<MessageHeader*>(slot);
  header->magic = kMessageMagic;
  header->version = kMessageVersion;
  header->kind = static_cast<uint16_t>(kind);
  header->incarnation = stamp.incarnation;
  header->signature = stamp.signature;
  header->sequence = stamp.sequence;
  header->channel = stamp.channel;
  header->membership_epoch = stamp.membership_epoch;
  header->payload_offset =
      static_cast<uint64_t>(with_metadata ? layout.DispatchPayloadOffset(0, 0) : layout.PlainPayloadOffset());
  header->rounds = with_metadata ? 1 : 0;
}

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_EMPTY_MESSAGE_H_
