// Where everything lies inside a message slot: pure arithmetic, shared by the CPU kernels, the CUDA kernels and the
// protocol. No allocation, no exceptions, no STL. constexpr: device code may call it (--expt-relaxed-constexpr).
#ifndef JAX_FABRIC_KERNELS_MOE_LAYOUT_H_
#define JAX_FABRIC_KERNELS_MOE_LAYOUT_H_

#include <cstdint>

namespace jax_fabric::kernels {

enum class ElementType : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2, kFloat8E4m3fn = 3 };

constexpr int64_t ElementBytes(ElementType type) {
  return type == ElementType::kFloat32 ? 4 : type == ElementType::kFloat8E4m3fn ? 1 : 2;
}

constexpr int64_t AlignUp(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

// The static shape of one expert-parallel context; the same on all ranks.
struct MoeShape {
  int32_t ranks = 1;             // N
  int32_t rank = 0;              // this rank
  int32_t experts_per_rank = 1;  // ceil(experts / N): expert e lives on rank e / experts_per_rank
  int32_t experts = 1;           // E, not necessarily a multiple of N
  int32_t max_tokens = 1;        // T, rows of x at most
  int32_t top_k = 1;             // K
  int32_t hidden = 1;            // H
  int64_t capacity = 1;          // C, rows of tokens
  // P: a message has room for so many rows, and a call takes as many rounds as its rows need (rounds.h).
  int32_t private_tokens = INT32_MAX;

  // A token needs a rank's slot once, with at most this many of that rank's experts.
  constexpr int32_t LocalTopK() const { return top_k < experts_per_rank ? top_k : experts_per_rank; }
  constexpr int32_t MessageRows() const { return private_tokens < max_tokens ? private_tokens : max_tokens; }
  // Any MessageRows() tokens fit into one round, however they are routed.
  // Devices divide slowly, and where one round is enough, as usual, need not.
  constexpr int32_t MaxRounds() const {
    return private_tokens >= max_tokens ? 1 : (max_tokens - 1) / MessageRows() + 1;
  }
};

// First bytes of every message. Then, in the first round of a dispatch only, what is to say about all rounds:
//   uint32 local_rows[experts_per_rank]  rows to each expert of this peer: whoever has them all knows where rows go
//   uint32 rows[N], expert_rows[N]   what this source sends to every rank (so that every rank sees any overflow)
//   uint32 round_rows[MaxRounds]     rows to this peer in each round; they add up to rows[this peer]
//   RowMeta row_meta[rows]           of the rows to this peer, by rising token index
//   Entry   entries[expert_rows]     the local experts of each row, by rising expert
// then from payload_offset (a multiple of 256) the rows of this round, each row_stride bytes apart.
struct MessageHeader {
  uint32_t magic = 0;        // kMessageMagic
  uint16_t version = 0;      // kMessageVersion
  uint16_t kind = 0;         // ExchangeKind
  uint64_t incarnation = 0;  // of the sending engine
  uint64_t signature = 0;    // hash of everything that must agree on all ranks
  int64_t sequence = -1;     // exchange number on this channel
  uint32_t channel = 0;
  uint32_t membership_epoch = 0;
  uint32_t rows = 0;            // rows in this message
  uint32_t expert_rows = 0;     // entries in this message
  uint64_t payload_offset = 0;  // from the start of the slot, bytes
  uint32_t first_row = 0;       // how many of this call's rows to this peer went in earlier rounds
  uint32_t rounds = 0;          // with the entries: how many rounds this source needs; else 0
};
static_assert(sizeof(MessageHeader) == 64, "the wire format depends on it");

inline constexpr uint32_t kMessageMagic = 0x6a666d31;  // "jfm1"
inline constexpr uint16_t kMessageVersion = 2;

enum class ExchangeKind : uint16_t {
  kDispatch = 1,      // rows of x to their experts
  kCombine = 2,       // sums of expert outputs back to their tokens
  kRedispatch = 3,    // transpose of combine: rows along known routes
  kDispatchBack = 4,  // transpose of dispatch: sums back, with one float per (token, k)
};

struct RowMeta {
  uint32_t token = 0;
  uint32_t entry_begin = 0;  // entries of row j: [entry_begin(j), entry_begin(j + 1)), the last one ends at expert_rows
};

struct Entry {
  uint32_t local_expert = 0;
  float weight = 0;
};

// Elements of a quantised row that share a scale; the last block may be shorter.
inline constexpr int64_t kScaleBlock = 128;

struct SlotLayout {
  MoeShape shape;
  ElementType dispatch_type = ElementType::kFloat32;    // rows of dispatch
  ElementType combine_type = ElementType::kFloat32;     // rows of combine and dispatch-back
  ElementType redispatch_type = ElementType::kFloat32;  // rows of redispatch
  bool quantised = false;  // rows of dispatch are float8_e4m3fn, each followed by its scales

  constexpr int64_t ScalesOfRow() const { return (shape.hidden + kScaleBlock - 1) / kScaleBlock; }
  // Of the float32 scales, from the beginning of their row.
  constexpr int64_t ScalesOffset() const { return AlignUp(shape.hidden * ElementBytes(dispatch_type), 16); }
  constexpr int64_t DispatchRowBytes() const {
    // Whole cache lines: stores past the caches need it.
    return quantised ? AlignUp(ScalesOffset() + 4 * ScalesOfRow(), 64) : ScalesOffset();
  }
  constexpr int64_t RedispatchRowBytes() const { return AlignUp(shape.hidden * ElementBytes(redispatch_type), 16); }
  constexpr int64_t CombineRowBytes() const { return AlignUp(shape.hidden * ElementBytes(combine_type), 16); }
  constexpr int64_t LocalRowsOffset() const { return sizeof(MessageHeader); }
  constexpr int64_t CountsOffset() const {
    return LocalRowsOffset() + 4 * static_cast<int64_t>(shape.experts_per_rank);
  }
  constexpr int64_t RoundRowsOffset() const { return CountsOffset() + 8 * static_cast<int64_t>(shape.ranks); }
  constexpr int64_t RowMetaOffset() const { return RoundRowsOffset() + 4 * static_cast<int64_t>(shape.MaxRounds()); }
  constexpr int64_t EntriesOffset(int64_t rows) const {
    return RowMetaOffset() + rows * static_cast<int64_t>(sizeof(RowMeta));
  }
  // Of the first message of a dispatch with that many rows and entries in all rounds.
  constexpr int64_t DispatchPayloadOffset(int64_t rows, int64_t entries) const {
    return AlignUp(EntriesOffset(rows) + entries * static_cast<int64_t>(sizeof(Entry)), 256);
  }
  // Of all other messages. Dispatch-back carries LocalTopK() floats a row between header and rows.
  constexpr int64_t PlainPayloadOffset() const { return 256; }
  constexpr int64_t ScalarsBytes(int64_t rows) const { return AlignUp(rows * shape.LocalTopK() * 4, 256); }

  constexpr int64_t DispatchMessageBytes(int64_t rows, int64_t entries, int64_t message_rows) const {
    return DispatchPayloadOffset(rows, entries) + message_rows * DispatchRowBytes();
  }
  constexpr int64_t CombineMessageBytes(int64_t rows, bool with_scalars) const {
    return PlainPayloadOffset() + (with_scalars ? ScalarsBytes(rows) : 0) + rows * CombineRowBytes();
  }
  // Room for the largest message of any kind, a multiple of 256.
  constexpr int64_t SlotBytes() const {
    const int64_t t = shape.max_tokens;
    const int64_t p = shape.MessageRows();
    const int64_t dispatch = DispatchMessageBytes(t, t * shape.LocalTopK(), p);
    const int64_t redispatch = PlainPayloadOffset() + p * RedispatchRowBytes();
    const int64_t combine = CombineMessageBytes(p, true);
    int64_t most = dispatch > combine ? dispatch : combine;
    most = most > redispatch ? most : redispatch;
    return AlignUp(most, 256);
  }
  // One slot for each source and parity.
  constexpr int64_t ChannelBytes() const { return 2 * static_cast<int64_t>(shape.ranks) * SlotBytes(); }
  constexpr int64_t SlotOffset(int32_t source, int64_t sequence) const {
    return ((sequence & 1) * shape.ranks + source) * SlotBytes();
  }
};

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_MOE_LAYOUT_H_
