// CheckMessage: everything that the receive kernels rely on, checked before they read anything else.
//
// A message holds no more rows than its slot has room for (a round's window); the first one of a dispatch also has the
// counts and the metadata of all rounds.
#include <cstdint>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {
namespace {

const char* CheckStamp(const MessageHeader& header, ExchangeKind kind, const MessageStamp& expected) {
  if (header.magic != kMessageMagic) return "no message (bad magic)";
  if (header.version != kMessageVersion) return "another version of the message format";
  if (header.channel != expected.channel) return "message of another channel";
  if (header.sequence != expected.sequence) return "message of another exchange (bad sequence)";
  if (expected.incarnation != 0 && header.incarnation != expected.incarnation) {
    return "message of another incarnation of the peer";
  }
  if (header.membership_epoch != expected.membership_epoch) return "message of another membership epoch";
  if (header.kind != static_cast<uint16_t>(kind)) return "the peer makes another kind of call";
  if (header.signature != expected.signature) return "the peer's call has another signature";
  return nullptr;
}

// What the source sends to every rank, in all rounds, and what it says it sends here.
const char* CheckCounts(const SlotLayout& layout, const MessageHeader& header, const uint32_t* rows) {
  const MoeShape& shape = layout.shape;
  const uint32_t* expert_rows = rows + shape.ranks;
  for (int64_t r = 0; r < shape.ranks; ++r) {
    if (rows[r] > static_cast<uint32_t>(shape.max_tokens)) return "more rows for a rank than max_tokens";
    if (expert_rows[r] < rows[r]) return "fewer entries for a rank than rows";
    const int64_t most = rows[r] * static_cast<int64_t>(shape.LocalTopK());
    if (expert_rows[r] > most) return "more entries for a rank than possible";
  }
  if (expert_rows[shape.rank] != header.expert_rows) return "the entry count disagrees with the header";
  return nullptr;
}

// How many of them go to each expert. That they are those of the entries, nobody relies on.
const char* CheckLocalRows(const MoeShape& shape, const MessageHeader& header, uint32_t rows,
                           const uint32_t* local_rows) {
  int64_t total = 0;
  for (int64_t e = 0; e < shape.experts_per_rank; ++e) {
    if (local_rows[e] > rows) return "more rows for an expert than for its rank";
    total += local_rows[e];
  }
  return total == header.expert_rows ? nullptr : "the rows of the experts do not add up";
}

// How the rows to this rank are split into rounds.
const char* CheckRounds(const MoeShape& shape, const MessageHeader& header, uint32_t rows, const uint32_t* round_rows) {
  if (header.rounds < 1 || header.rounds > static_cast<uint32_t>(shape.MaxRounds())) {
    return "more rounds than possible, or none";
  }
  if (header.first_row != 0) return "rows before those of the first round";
  int64_t total = 0;
  for (uint32_t round = 0; round < static_cast<uint32_t>(shape.MaxRounds()); ++round) {
    if (round_rows[round] > static_cast<uint32_t>(shape.MessageRows()))
      return "more rows in a round than private_tokens";
    if (round >= header.rounds && round_rows[round] != 0) return "rows after the last round";
    total += round_rows[round];
  }
  if (total != rows) return "the rows of the rounds do not add up";
  if (round_rows[0] != header.rows) return "the row count disagrees with the header";
  return nullptr;
}

// Entries [begin, end) of one row.
const char* CheckEntries(const MoeShape& shape, const Entry* begin, const Entry* end) {
  // The last ranks may have fewer experts, or none.
  const int64_t first_expert = static_cast<int64_t>(shape.rank) * shape.experts_per_rank;
  const int64_t after_mine = shape.experts - first_expert;
  const int64_t experts = after_mine < shape.experts_per_rank ? after_mine : shape.experts_per_rank;
  int64_t previous = -1;
  for (const Entry* entry = begin; entry != end; ++entry) {
    if (entry->local_expert >= experts) return "an entry names an expert that does not live here";
    if (entry->local_expert <= previous) return "the experts of a row do not rise";
    previous = entry->local_expert;
  }
  return nullptr;
}

const char* CheckRows(const MoeShape& shape, const MessageHeader& header, int64_t rows, const RowMeta* meta,
                      const Entry* entries) {
  int64_t previous_token = -1;
  int64_t begin = 0;
  for (int64_t j = 0; j < rows; ++j) {
    if (meta[j].token >= static_cast<uint32_t>(shape.max_tokens)) return "a row's token is not below max_tokens";
    if (meta[j].token <= previous_token) return "the tokens of the rows do not rise";
    previous_token = meta[j].token;
    // Each row begins where the one before ended.
    if (meta[j].entry_begin != begin) return "the entries of a row begin where they may not";
    const int64_t end = j + 1 < rows ? meta[j + 1].entry_begin : header.expert_rows;
    if (end > header.expert_rows) return "the entries of a row end past the last one";
    if (end <= begin) return "a row without entries";
    if (end - begin > shape.LocalTopK()) return "a row with more entries than possible";
    if (const char* error = CheckEntries(shape, entries + begin, entries + end)) return error;
    begin = end;
  }
  return nullptr;
}

const char* CheckDispatch(const SlotLayout& layout, const char* slot, const MessageHeader& header) {
  const auto* counts = reinterpret_cast<const uint32_t*>(slot + layout.CountsOffset());
  if (const char* error = CheckCounts(layout, header, counts)) return error;
  const uint32_t rows = counts[layout.shape.rank];
  const auto* local_rows = reinterpret_cast<const uint32_t*>(slot + layout.LocalRowsOffset());
  if (const char* error = CheckLocalRows(layout.shape, header, rows, local_rows)) return error;
  const auto* round_rows = reinterpret_cast<const uint32_t*>(slot + layout.RoundRowsOffset());
  if (const char* error = CheckRounds(layout.shape, header, rows, round_rows)) return error;
  // The counts are possible ones: everything below lies inside the slot.
  if (header.payload_offset != static_cast<uint64_t>(layout.DispatchPayloadOffset(rows, header.expert_rows))) {
    return "the rows begin where they may not (bad payload offset)";
  }
  return CheckRows(layout.shape, header, rows, reinterpret_cast<const RowMeta*>(slot + layout.RowMetaOffset()),
                   reinterpret_cast<const Entry*>(slot + layout.EntriesOffset(rows)));
}

const char* CheckPlain(const SlotLayout& layout, const MessageHeader& header, ExchangeKind kind) {
  if (header.expert_rows != 0 || header.rounds != 0) return "entries in a message that has none";
  if (header.first_row > static_cast<uint32_t>(layout.shape.max_tokens) - header.rows) {
    return "rows past max_tokens";
  }
  const int64_t scalars = kind == ExchangeKind::kDispatchBack ? layout.ScalarsBytes(header.rows) : 0;
  if (header.payload_offset != static_cast<uint64_t>(layout.PlainPayloadOffset() + scalars)) {
    return "the rows begin where they may not (bad payload offset)";
  }
  return nullptr;
}

}  // namespace

const char* CheckMessage(const SlotLayout& layout, const void* slot, ExchangeKind kind, const MessageStamp& stamp,
                         int32_t source, const ExpectedRows& expected) {
  if (source < 0 || source >= layout.shape.ranks) return "no such source";
  const auto& header = *static_cast<const MessageHeader*>(slot);
  if (const char* error = CheckStamp(header, kind, stamp)) return error;
  if (header.rows > static_cast<uint32_t>(layout.shape.MessageRows())) return "more rows than a message has room for";
  const bool other_rows = header.rows != expected.rows || (header.rows > 0 && header.first_row != expected.first_row);
  if (expected.rows >= 0 && other_rows) return "not the rows that the dispatch before calls for";
  if (kind == ExchangeKind::kDispatch && expected.round == 0) {
    return CheckDispatch(layout, static_cast<const char*>(slot), header);
  }
  return CheckPlain(layout, header, kind);
}

}  // namespace jax_fabric::kernels
