// The parts of CheckMessage that the CPU and a device share: each looks at one thing, and the device looks at many of
// them at once. constexpr: device code may call it.
#ifndef JAX_FABRIC_KERNELS_MESSAGE_CHECKS_H_
#define JAX_FABRIC_KERNELS_MESSAGE_CHECKS_H_

#include <cstdint>

#include "csrc/kernels/message_fault.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {

constexpr MessageFault CheckStamp(const MessageHeader& header, ExchangeKind kind, const MessageStamp& expected) {
  if (header.magic != kMessageMagic) return MessageFault::kMagic;
  if (header.version != kMessageVersion) return MessageFault::kVersion;
  if (header.channel != expected.channel) return MessageFault::kChannel;
  if (header.sequence != expected.sequence) return MessageFault::kSequence;
  if (expected.incarnation != 0 && header.incarnation != expected.incarnation) return MessageFault::kIncarnation;
  if (header.membership_epoch != expected.membership_epoch) return MessageFault::kMembershipEpoch;
  if (header.kind != static_cast<uint16_t>(kind)) return MessageFault::kKind;
  if (header.signature != expected.signature) return MessageFault::kSignature;
  return MessageFault::kNone;
}

constexpr MessageFault CheckRowCount(const MoeShape& shape, const MessageHeader& header, const ExpectedRows& expected) {
  if (header.rows > static_cast<uint32_t>(shape.MessageRows())) return MessageFault::kRows;
  const bool other_rows = header.rows != expected.rows || (header.rows > 0 && header.first_row != expected.first_row);
  return expected.rows >= 0 && other_rows ? MessageFault::kOtherRows : MessageFault::kNone;
}

// What a source sends to one rank, in all rounds.
constexpr MessageFault CheckRankCounts(const MoeShape& shape, uint32_t rows, uint32_t expert_rows) {
  if (rows > static_cast<uint32_t>(shape.max_tokens)) return MessageFault::kRankRows;
  if (expert_rows < rows) return MessageFault::kFewEntries;
  return expert_rows > rows * static_cast<int64_t>(shape.LocalTopK()) ? MessageFault::kManyEntries
                                                                      : MessageFault::kNone;
}

// How the rows to this rank are split into rounds.
constexpr MessageFault CheckRounds(const MoeShape& shape, const MessageHeader& header, uint32_t rows,
                                   const uint32_t* round_rows) {
  if (header.rounds < 1 || header.rounds > static_cast<uint32_t>(shape.MaxRounds())) return MessageFault::kRounds;
  if (header.first_row != 0) return MessageFault::kFirstRow;
  int64_t total = 0;
  for (uint32_t round = 0; round < static_cast<uint32_t>(shape.MaxRounds()); ++round) {
    if (round_rows[round] > static_cast<uint32_t>(shape.MessageRows())) return MessageFault::kRoundRows;
    if (round >= header.rounds && round_rows[round] != 0) return MessageFault::kLateRows;
    total += round_rows[round];
  }
  if (total != rows) return MessageFault::kRoundRowsSum;
  return round_rows[0] != header.rows ? MessageFault::kRowCount : MessageFault::kNone;
}

// Entries [begin, end) of one row.
constexpr MessageFault CheckEntries(const MoeShape& shape, const Entry* begin, const Entry* end) {
  // The last ranks may have fewer experts, or none.
  const int64_t first_expert = static_cast<int64_t>(shape.rank) * shape.experts_per_rank;
  const int64_t after_mine = shape.experts - first_expert;
  const int64_t experts = after_mine < shape.experts_per_rank ? after_mine : shape.experts_per_rank;
  int64_t previous = -1;
  for (const Entry* entry = begin; entry != end; ++entry) {
    if (entry->local_expert >= experts) return MessageFault::kExpert;
    if (entry->local_expert <= previous) return MessageFault::kExpertOrder;
    previous = entry->local_expert;
  }
  return MessageFault::kNone;
}

// Row j of `rows`, by itself: its entries end where those of the next row begin.
constexpr MessageFault CheckRow(const MoeShape& shape, const MessageHeader& header, int64_t rows, const RowMeta* meta,
                                const Entry* entries, int64_t j) {
  if (meta[j].token >= static_cast<uint32_t>(shape.max_tokens)) return MessageFault::kToken;
  if (j > 0 && meta[j].token <= meta[j - 1].token) return MessageFault::kTokenOrder;
  if (j == 0 && meta[j].entry_begin != 0) return MessageFault::kEntryBegin;
  const int64_t begin = meta[j].entry_begin;
  const int64_t end = j + 1 < rows ? meta[j + 1].entry_begin : header.expert_rows;
  if (end > header.expert_rows) return MessageFault::kEntryEnd;
  if (end <= begin) return MessageFault::kNoEntries;
  if (end - begin > shape.LocalTopK()) return MessageFault::kRowEntries;
  return CheckEntries(shape, entries + begin, entries + end);
}

// All that is left of a message which is not the first of a dispatch.
constexpr MessageFault CheckPlain(const SlotLayout& layout, const MessageHeader& header, ExchangeKind kind) {
  if (header.expert_rows != 0 || header.rounds != 0) return MessageFault::kEntries;
  if (header.first_row > static_cast<uint32_t>(layout.shape.max_tokens) - header.rows) {
    return MessageFault::kRowsPastMax;
  }
  const int64_t scalars = kind == ExchangeKind::kDispatchBack ? layout.ScalarsBytes(header.rows) : 0;
  return header.payload_offset != static_cast<uint64_t>(layout.PlainPayloadOffset() + scalars)
             ? MessageFault::kPayloadOffset
             : MessageFault::kNone;
}

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_MESSAGE_CHECKS_H_
