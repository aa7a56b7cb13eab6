// CheckMessage: everything that the receive kernels rely on, checked before they read anything else.
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

// What the source sends to every rank, and what it says it sends here.
const char* CheckCounts(const SlotLayout& layout, const MessageHeader& header, const uint32_t* rows) {
  const MoeShape& shape = layout.shape;
  const uint32_t* expert_rows = rows + shape.ranks;
  for (int64_t r = 0; r < shape.ranks; ++r) {
    if (rows[r] > static_cast<uint32_t>(shape.max_tokens)) return "more rows for a rank than max_tokens";
    if (expert_rows[r] < rows[r]) return "fewer entries for a rank than rows";
    const int64_t most = rows[r] * static_cast<int64_t>(shape.LocalTopK());
    if (expert_rows[r] > most) return "more entries for a rank than possible";
  }
  if (rows[shape.rank] != header.rows) return "the row count disagrees with the header";
  if (expert_rows[shape.rank] != header.expert_rows) return "the entry count disagrees with the header";
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

const char* CheckRows(const SlotLayout& layout, const MessageHeader& header, const RowMeta* meta,
                      const Entry* entries) {
  const MoeShape& shape = layout.shape;
  const int64_t rows = header.rows;
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
  // The counts are possible ones: everything below lies inside the slot.
  if (header.payload_offset != static_cast<uint64_t>(layout.DispatchPayloadOffset(header.rows, header.expert_rows))) {
    return "the rows begin where they may not (bad payload offset)";
  }
  return CheckRows(layout, header, reinterpret_cast<const RowMeta*>(slot + layout.RowMetaOffset()),
                   reinterpret_cast<const Entry*>(slot + layout.EntriesOffset(header.rows)));
}

}  // namespace

const char* CheckMessage(const SlotLayout& layout, const void* slot, ExchangeKind kind, const MessageStamp& expected,
                         int32_t source, int64_t expected_rows) {
  if (source < 0 || source >= layout.shape.ranks) return "no such source";
  const auto& header = *static_cast<const MessageHeader*>(slot);
  if (const char* error = CheckStamp(header, kind, expected)) return error;
  if (header.rows > static_cast<uint32_t>(layout.shape.max_tokens)) return "more rows than max_tokens";
  if (expected_rows >= 0 && header.rows != expected_rows) return "not the rows that the dispatch before calls for";
  if (kind == ExchangeKind::kDispatch) return CheckDispatch(layout, static_cast<const char*>(slot), header);

  if (header.expert_rows != 0) return "entries in a message that has none";
  const int64_t scalars = kind == ExchangeKind::kDispatchBack ? layout.ScalarsBytes(header.rows) : 0;
  if (header.payload_offset != static_cast<uint64_t>(layout.PlainPayloadOffset() + scalars)) {
    return "the rows begin where they may not (bad payload offset)";
  }
  return nullptr;
}

}  // namespace jax_fabric::kernels
