// CheckMessage: everything that the receive kernels rely on, checked before they read anything else.
//
// A message holds no more rows than its slot has room for (a round's window); the first one of a dispatch also has the
// counts and the metadata of all rounds.
#include <cstdint>

#include "csrc/kernels/message_checks.h"
#include "csrc/kernels/message_fault.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {
namespace {

// What the source sends to every rank, in all rounds, and what it says it sends here.
MessageFault CheckCounts(const MoeShape& shape, const MessageHeader& header, const uint32_t* rows) {
  const uint32_t* expert_rows = rows + shape.ranks;
  for (int64_t r = 0; r < shape.ranks; ++r) {
    const MessageFault fault = CheckRankCounts(shape, rows[r], expert_rows[r]);
    if (fault != MessageFault::kNone) return fault;
  }
  return expert_rows[shape.rank] != header.expert_rows ? MessageFault::kEntryCount : MessageFault::kNone;
}

// How many of them go to each expert. That they are those of the entries, nobody relies on.
MessageFault CheckLocalRows(const MoeShape& shape, const MessageHeader& header, uint32_t rows,
                            const uint32_t* local_rows) {
  int64_t total = 0;
  for (int64_t e = 0; e < shape.experts_per_rank; ++e) {
    if (local_rows[e] > rows) return MessageFault::kExpertRows;
    total += local_rows[e];
  }
  return total == header.expert_rows ? MessageFault::kNone : MessageFault::kExpertRowsSum;
}

MessageFault CheckRows(const MoeShape& shape, const MessageHeader& header, int64_t rows, const RowMeta* meta,
                       const Entry* entries) {
  for (int64_t j = 0; j < rows; ++j) {
    const MessageFault fault = CheckRow(shape, header, rows, meta, entries, j);
    if (fault != MessageFault::kNone) return fault;
  }
  return MessageFault::kNone;
}

MessageFault CheckDispatch(const SlotLayout& layout, const char* slot, const MessageHeader& header) {
  const auto* counts = reinterpret_cast<const uint32_t*>(slot + layout.CountsOffset());
  MessageFault fault = CheckCounts(layout.shape, header, counts);
  if (fault != MessageFault::kNone) return fault;
  const uint32_t rows = counts[layout.shape.rank];
  fault =
      CheckLocalRows(layout.shape, header, rows, reinterpret_cast<const uint32_t*>(slot + layout.LocalRowsOffset()));
  if (fault != MessageFault::kNone) return fault;
  fault = CheckRounds(layout.shape, header, rows, reinterpret_cast<const uint32_t*>(slot + layout.RoundRowsOffset()));
  if (fault != MessageFault::kNone) return fault;
  // The counts are possible ones: everything below lies inside the slot.
  if (header.payload_offset != static_cast<uint64_t>(layout.DispatchPayloadOffset(rows, header.expert_rows))) {
    return MessageFault::kPayloadOffset;
  }
  return CheckRows(layout.shape, header, rows, reinterpret_cast<const RowMeta*>(slot + layout.RowMetaOffset()),
                   reinterpret_cast<const Entry*>(slot + layout.EntriesOffset(rows)));
}

MessageFault FindFault(const SlotLayout& layout, const void* slot, ExchangeKind kind, const MessageStamp& stamp,
                       int32_t source, const ExpectedRows& expected) {
  if (source < 0 || source >= layout.shape.ranks) return MessageFault::kSource;
  const auto& header = *static_cast<const MessageHeader*>(slot);
  MessageFault fault = CheckStamp(header, kind, stamp);
  if (fault != MessageFault::kNone) return fault;
  fault = CheckRowCount(layout.shape, header, expected);
  if (fault != MessageFault::kNone) return fault;
  if (kind == ExchangeKind::kDispatch && expected.round == 0) {
    return CheckDispatch(layout, static_cast<const char*>(slot), header);
  }
  return CheckPlain(layout, header, kind);
}

}  // namespace

const char* CheckMessage(const SlotLayout& layout, const void* slot, ExchangeKind kind, const MessageStamp& stamp,
                         int32_t source, const ExpectedRows& expected) {
  return TextOf(FindFault(layout, slot, kind, stamp, source, expected));
}

}  // namespace jax_fabric::kernels
