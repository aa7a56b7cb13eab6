// DispatchSend and DispatchReceive. Rounds after the first move rows along routes that are known, as redispatch does.
#include <cstdint>
#include <cstring>
#include <numeric>

#include "csrc/kernels/cpu/message.h"
#include "csrc/kernels/cpu/message_rows.h"
#include "csrc/kernels/cpu/row_ops.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels {
namespace {

// ---- Send ----------------------------------------------------------------------------------------------------------
//
// The entries of a message lie behind its row metadata and the rows behind its entries, so both are counted first: rows
// while they are numbered, entries while they are written. There is no scratch memory, since nothing bounds the number
// of ranks; until it gets its value at the end, message_bytes[r] holds both counts of the message to rank r.

class Tally {
 public:
  explicit Tally(int64_t* word) : word_(word) {}
  int64_t rows() const { return *word_ >> 32; }
  int64_t entries() const { return *word_ & 0xffffffff; }
  void AddRow() { *word_ += int64_t{1} << 32; }
  void AddEntry() { *word_ += 1; }

 private:
  int64_t* word_;
};

constexpr uint32_t kNoEntriesYet = 0xffffffff;

struct Target {
  int32_t rank;  // -1: not routed
  uint32_t local_expert;
};

Target TargetOf(const DispatchSendArgs& args, int32_t expert) {
  const MoeShape& shape = args.layout.shape;
  // As unsigned numbers, negative ids are too large as well.
  if (static_cast<uint32_t>(expert) >= static_cast<uint32_t>(shape.experts)) return {-1, 0};
  const int32_t rank = expert / shape.experts_per_rank;
  if (args.absent != nullptr && args.absent[rank] != 0) return {-1, 0};
  return {rank, static_cast<uint32_t>(expert - rank * shape.experts_per_rank)};
}

// In the message to a rank: the rows to it in each round.
uint32_t* RoundRows(const DispatchSendArgs& args, int64_t rank) {
  return At<uint32_t>(args.slots[rank], args.layout.RoundRowsOffset());
}

// In the message to a rank: the rows to each of its experts.
uint32_t* LocalRows(const DispatchSendArgs& args, int64_t rank) {
  return At<uint32_t>(args.slots[rank], args.layout.LocalRowsOffset());
}

// Whether the round has room for a row of token t at each of its ranks.
bool RoundHasRoom(const DispatchSendArgs& args, int64_t t, int64_t round) {
  const MoeShape& shape = args.layout.shape;
  const auto most = static_cast<uint32_t>(shape.MessageRows());
  for (int64_t k = 0; k < shape.top_k; ++k) {
    const int32_t rank = TargetOf(args, args.experts[t * shape.top_k + k]).rank;
    if (rank >= 0 && RoundRows(args, rank)[round] == most) return false;
  }
  return true;
}

// Fills route.index, route.token_ends, and the tokens of the row metadata; counts rows, in all and of each round.
void NumberRows(const DispatchSendArgs& args) {
  const MoeShape& shape = args.layout.shape;
  const int64_t ranks = shape.ranks;
  for (int64_t r = 0; r < ranks; ++r) {
    args.message_bytes[r] = 0;
    ZeroBytes(args.slots[r], args.layout.LocalRowsOffset(), args.layout.RowMetaOffset());
  }
  int64_t round = 0;
  const bool one_round = args.t_rows <= shape.MessageRows();
  for (int64_t t = 0; t < args.t_rows; ++t) {
    if (!one_round && !RoundHasRoom(args, t, round)) args.route.token_ends[round++] = static_cast<int32_t>(t);
    int32_t* index = args.route.index + t * ranks;
    for (int64_t r = 0; r < ranks; ++r) index[r] = -1;
    for (int64_t k = 0; k < shape.top_k; ++k) {
      const int32_t rank = TargetOf(args, args.experts[t * shape.top_k + k]).rank;
      if (rank < 0 || index[rank] >= 0) continue;
      Tally tally(&args.message_bytes[rank]);
      index[rank] = static_cast<int32_t>(tally.rows());
      auto* meta = At<RowMeta>(args.slots[rank], args.layout.RowMetaOffset());
      meta[tally.rows()] = RowMeta{static_cast<uint32_t>(t), kNoEntriesYet};
      tally.AddRow();
      ++RoundRows(args, rank)[round];
    }
  }
  for (; round < shape.MaxRounds(); ++round) args.route.token_ends[round] = args.t_rows;
}

// Puts an expert into the sorted entries [begin, end). False if it was there: then its weight has grown.
bool InsertEntry(Entry* begin, Entry* end, uint32_t local_expert, float weight) {
  Entry* place = end;
  while (place != begin && place[-1].local_expert > local_expert) --place;
  if (place != begin && place[-1].local_expert == local_expert) {
    place[-1].weight += weight;
    return false;
  }
  for (Entry* entry = end; entry != place; --entry) *entry = entry[-1];
  *place = Entry{local_expert, weight};
  return true;
}

// Index in the sorted entries [begin, ...) of an expert that is there.
int32_t FindEntry(const Entry* begin, uint32_t local_expert) {
  const Entry* entry = begin;
  while (entry->local_expert != local_expert) ++entry;
  return static_cast<int32_t>(entry - begin);
}

// Fills the entries, where they begin for each row, and route.slot; counts entries.
void WriteEntries(const DispatchSendArgs& args) {
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  const int64_t top_k = shape.top_k;
  const int64_t local_top_k = shape.LocalTopK();
  for (int64_t t = 0; t < args.t_rows; ++t) {
    const int32_t* index = args.route.index + t * shape.ranks;
    const auto row_of = [&](int32_t rank) {
      return At<RowMeta>(args.slots[rank], layout.RowMetaOffset()) + index[rank];
    };
    const auto entries_of = [&](int32_t rank) {
      return At<Entry>(args.slots[rank], layout.EntriesOffset(Tally(&args.message_bytes[rank]).rows()));
    };
    for (int64_t k = 0; k < top_k; ++k) {
      const Target target = TargetOf(args, args.experts[t * top_k + k]);
      if (target.rank < 0) continue;
      Tally tally(&args.message_bytes[target.rank]);
      RowMeta* row = row_of(target.rank);
      if (row->entry_begin == kNoEntriesYet) row->entry_begin = static_cast<uint32_t>(tally.entries());
      Entry* entries = entries_of(target.rank);
      if (InsertEntry(entries + row->entry_begin, entries + tally.entries(), target.local_expert,
                      args.weights[t * top_k + k])) {
        tally.AddEntry();
        ++LocalRows(args, target.rank)[target.local_expert];
      }
    }
    // Only now do entries stay where they are.
    for (int64_t k = 0; k < top_k; ++k) {
      const Target target = TargetOf(args, args.experts[t * top_k + k]);
      int32_t slot = -1;
      if (target.rank >= 0) {
        const Entry* begin = entries_of(target.rank) + row_of(target.rank)->entry_begin;
        slot = static_cast<int32_t>(target.rank * local_top_k + FindEntry(begin, target.local_expert));
      }
      args.route.slot[t * top_k + k] = slot;
    }
  }
}

int64_t PayloadOffset(const DispatchSendArgs& args, int64_t rank) {
  const Tally tally(&args.message_bytes[rank]);
  return args.layout.DispatchPayloadOffset(tally.rows(), tally.entries());
}

void WriteRows(const DispatchSendArgs& args) {
  const SlotLayout& layout = args.layout;
  const int64_t ranks = layout.shape.ranks;
  const RowFormat format(layout, ExchangeKind::kDispatch);
  const RowOps& ops = GetRowOps();
  const IndexRange tokens = TokensInRound(layout.shape, args.route, args.t_rows, 0);
  const bool streamed = VolumeOf(layout.shape, args.route, tokens).PastCaches(format.stride, args.cache_bytes);
  RowWriter writer(ops, format, {args.x_type, args.x, args.scales}, streamed);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    writer.StartToken(t);
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t index = args.route.index[t * ranks + r];
      if (index >= 0) writer.Write(At<char>(args.slots[r], PayloadOffset(args, r) + index * format.stride));
    }
  }
  if (streamed) ops.finish_streamed();
}

// Headers, and everybody's counts in everybody's message. Ends the life of the tallies.
void WriteHeaders(const DispatchSendArgs& args) {
  const SlotLayout& layout = args.layout;
  const int64_t ranks = layout.shape.ranks;
  int64_t rounds = 1;
  while (args.route.token_ends[rounds - 1] < args.t_rows) ++rounds;
  for (int64_t r = 0; r < ranks; ++r) {
    void* slot = args.slots[r];
    auto* rows = At<uint32_t>(slot, layout.CountsOffset());
    auto* expert_rows = rows + ranks;
    for (int64_t peer = 0; peer < ranks; ++peer) {
      const Tally tally(&args.message_bytes[peer]);
      rows[peer] = static_cast<uint32_t>(tally.rows());
      expert_rows[peer] = static_cast<uint32_t>(tally.entries());
    }
    const Tally tally(&args.message_bytes[r]);
    const int64_t entries_end = layout.EntriesOffset(tally.rows()) + tally.entries() * sizeof(Entry);
    const int64_t payload_offset = PayloadOffset(args, r);
    ZeroBytes(slot, entries_end, payload_offset);
    WriteHeader(args.stamp, ExchangeKind::kDispatch,
                {.rows = RoundRows(args, r)[0],
                 .expert_rows = tally.entries(),
                 .rounds = rounds,
                 .payload_offset = payload_offset},
                slot);
  }
  for (int64_t r = 0; r < ranks; ++r) {
    const Tally tally(&args.message_bytes[r]);
    args.message_bytes[r] = layout.DispatchMessageBytes(tally.rows(), tally.entries(), RoundRows(args, r)[0]);
  }
}

// ---- Receive -------------------------------------------------------------------------------------------------------

// The metadata of a checked message, which is of all rounds.
struct DispatchMessage {
  DispatchMessage(const SlotLayout& layout, const void* slot)
      : round_rows(At<uint32_t>(slot, layout.RoundRowsOffset())),
        rows(std::accumulate(round_rows, round_rows + layout.shape.MaxRounds(), int64_t{0})),
        rows_here(HeaderOf(slot).rows),
        expert_rows(HeaderOf(slot).expert_rows),
        meta(At<RowMeta>(slot, layout.RowMetaOffset())),
        entries(At<Entry>(slot, layout.EntriesOffset(rows))),
        payload(At<char>(slot, HeaderOf(slot).payload_offset)) {}

  int64_t EntryBegin(int64_t row) const { return meta[row].entry_begin; }
  int64_t EntryEnd(int64_t row) const { return row + 1 < rows ? meta[row + 1].entry_begin : expert_rows; }

  const uint32_t* round_rows;
  int64_t rows;
  int64_t rows_here;  // of them, those in this message
  int64_t expert_rows;
  const RowMeta* meta;
  const Entry* entries;
  const char* payload;
};

// Rows of an element's experts have their own part of the results.
int64_t ElementOf(const DispatchReceiveArgs& args, uint32_t token) {
  const int64_t element = token / static_cast<uint32_t>(args.element_rows);
  return element < args.elements ? element : args.elements - 1;
}

// The groups of one element: group_sizes[begin], ..., group_sizes[begin + experts_per_rank - 1].
int64_t FirstGroup(const DispatchReceiveArgs& args, int64_t element) {
  return element * args.layout.shape.experts_per_rank;
}

// group_sizes[g] = the position at which the rows of group g begin.
void FindGroupBegins(const DispatchReceiveArgs& args) {
  const MoeShape& shape = args.layout.shape;
  const int64_t groups = FirstGroup(args, args.elements);
  for (int64_t g = 0; g < groups; ++g) args.group_sizes[g] = 0;
  for (int64_t s = 0; s < shape.ranks; ++s) {
    const DispatchMessage message(args.layout, args.slots[s]);
    for (int64_t j = 0; j < message.rows; ++j) {
      int32_t* sizes = args.group_sizes + FirstGroup(args, ElementOf(args, message.meta[j].token));
      for (int64_t i = message.EntryBegin(j); i < message.EntryEnd(j); ++i) ++sizes[message.entries[i].local_expert];
    }
  }
  for (int64_t b = 0; b < args.elements; ++b) {
    int64_t position = b * shape.capacity;
    for (int64_t g = FirstGroup(args, b); g < FirstGroup(args, b + 1); ++g) {
      const int32_t size = args.group_sizes[g];
      args.group_sizes[g] = static_cast<int32_t>(position);
      position += size;
    }
  }
}

// Fills route.rows: the call takes as many rounds as the source that needs most.
void NoteRounds(const DispatchReceiveArgs& args) {
  const MoeShape& shape = args.layout.shape;
  int64_t rounds = 1;
  for (int64_t s = 0; s < shape.ranks; ++s) {
    const int64_t needed = HeaderOf(args.slots[s]).rounds;
    if (rounds < needed) rounds = needed;
  }
  for (int64_t s = 0; s < shape.ranks; ++s) {
    const DispatchMessage message(args.layout, args.slots[s]);
    int32_t* rows = args.route.rows + s * shape.MaxRounds();
    for (int64_t round = 0; round < shape.MaxRounds(); ++round) {
      rows[round] = round < rounds ? static_cast<int32_t>(message.round_rows[round]) : -1;
    }
  }
}

// Gives each row its positions, and moves there those that are here. Walking sources, tokens and experts in rising
// order and giving each expert's rows the next position of its group is what orders a group by (source, token). Moves
// group_sizes[g] to the group's end.
void PlaceRows(const DispatchReceiveArgs& args) {
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  const int64_t local_top_k = shape.LocalTopK();
  const RowOps& ops = GetRowOps();
  Volume volume;
  for (int64_t s = 0; s < shape.ranks; ++s) {
    volume.rows += HeaderOf(args.slots[s]).rows;
    volume.entries += HeaderOf(args.slots[s]).expert_rows;
  }
  const RowFormat format(layout, ExchangeKind::kDispatch);
  const RowTarget target{args.tokens_type, args.tokens, args.scales};
  const bool streamed = volume.PastCaches(format.stride, args.cache_bytes);
  for (int64_t s = 0; s < shape.ranks; ++s) {
    const DispatchMessage message(layout, args.slots[s]);
    int32_t* positions = args.route.positions + s * shape.max_tokens * local_top_k;
    for (int64_t j = 0; j < message.rows; ++j, positions += local_top_k) {
      const char* row = message.payload + j * format.stride;
      const void* copy = nullptr;
      const int64_t begin = message.EntryBegin(j);
      const int64_t count = message.EntryEnd(j) - begin;
      const int64_t element = ElementOf(args, message.meta[j].token);
      int32_t* next = args.group_sizes + FirstGroup(args, element);
      const int64_t end = (element + 1) * shape.capacity;
      for (int64_t i = 0; i < count; ++i) {
        const Entry& entry = message.entries[begin + i];
        const int64_t position = next[entry.local_expert]++;
        const bool fits = position < end;
        positions[i] = fits ? static_cast<int32_t>(position) : -1;
        if (!fits) continue;
        args.weights[position] = entry.weight;
        if (j >= message.rows_here) continue;
        copy = ReadRow(ops, format, target, row, copy, position, streamed);
      }
      for (int64_t i = count; i < local_top_k; ++i) positions[i] = -1;
    }
    std::memset(positions, 0xff, (shape.max_tokens - message.rows) * local_top_k * sizeof(int32_t));
  }
  if (streamed) ops.finish_streamed();
}

// From ends of groups to sizes, without what lies past the capacity; then what an element's rows leave unused.
void FinishElement(const DispatchReceiveArgs& args, int64_t element) {
  const MoeShape& shape = args.layout.shape;
  const int64_t last = (element + 1) * shape.capacity;
  int64_t begin = element * shape.capacity;
  int64_t total = begin;
  for (int64_t g = FirstGroup(args, element); g < FirstGroup(args, element + 1); ++g) {
    total = args.group_sizes[g];
    const int64_t end = total < last ? total : last;
    args.group_sizes[g] = static_cast<int32_t>(end - begin);
    begin = end;
  }
  for (int64_t c = begin; c < last; ++c) args.weights[c] = 0.0f;
  if (args.zero_padding) {
    const int64_t row_bytes = shape.hidden * ElementBytes(args.tokens_type);
    ZeroBytes(args.tokens, begin * row_bytes, last * row_bytes);
    const int64_t scale_bytes = args.layout.ScalesOfRow() * static_cast<int64_t>(sizeof(float));
    if (args.scales != nullptr) ZeroBytes(args.scales, begin * scale_bytes, last * scale_bytes);
  }
  if (args.dropped != nullptr) args.dropped[element] = static_cast<int32_t>(total - begin);
}

}  // namespace

void DispatchSend(const DispatchSendArgs& args) {
  if (args.round > 0) {
    return RedispatchSend({.layout = args.layout,
                           .stamp = args.stamp,
                           .round = args.round,
                           .kind = ExchangeKind::kDispatch,
                           .t_rows = args.t_rows,
                           .x_type = args.x_type,
                           .x = args.x,
                           .scales = args.scales,
                           .route = args.route,
                           .slots = args.slots,
                           .message_bytes = args.message_bytes,
                           .cache_bytes = args.cache_bytes});
  }
  NumberRows(args);
  WriteEntries(args);
  WriteRows(args);
  WriteHeaders(args);
}

void DispatchReceive(const DispatchReceiveArgs& args) {
  if (args.round > 0) {
    RedispatchReceiveArgs rest{.layout = args.layout,
                               .round = args.round,
                               .kind = ExchangeKind::kDispatch,
                               .slots = args.slots,
                               .route = args.route,
                               .out_type = args.tokens_type,
                               .out = args.tokens,
                               .scales = args.scales,
                               .cache_bytes = args.cache_bytes};
    rest.layout.shape.capacity *= args.elements;
    return RedispatchReceive(rest);
  }
  NoteRounds(args);
  FindGroupBegins(args);
  PlaceRows(args);
  for (int64_t b = 0; b < args.elements; ++b) FinishElement(args, b);
}

}  // namespace jax_fabric::kernels
