// RedispatchSend and RedispatchReceive: the transpose of combine, and the later rounds of dispatch.
#include <cstdint>

#include "csrc/kernels/cpu/message.h"
#include "csrc/kernels/cpu/message_rows.h"
#include "csrc/kernels/cpu/row_ops.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels {
namespace {

// How many rows a message has so far, and the number of the first one among all rows to its rank. There is no scratch
// memory, since nothing bounds the number of ranks: until it gets its value at the end, message_bytes holds both.
class RowCount {
 public:
  explicit RowCount(int64_t* word) : word_(word) {}
  int64_t rows() const { return *word_ & 0xffffffff; }
  int64_t first_row() const { return *word_ >> 32; }
  void Add(int64_t index) { *word_ = rows() == 0 ? (index << 32) + 1 : *word_ + 1; }

 private:
  int64_t* word_;
};

// Rows [0, used) of out are those that rows go to, in any round: DispatchReceive leaves no gaps.
int64_t UsedRows(const RedispatchReceiveArgs& args) {
  const MoeShape& shape = args.layout.shape;
  const int64_t local_top_k = shape.LocalTopK();
  const int32_t rounds = RoundsOf(shape, args.route);
  int64_t used = 0;
  for (int64_t s = 0; s < shape.ranks; ++s) {
    const int64_t entries = RowsInRound(shape, args.route, s, rounds - 1).end * local_top_k;
    const int32_t* positions = args.route.positions + s * shape.max_tokens * local_top_k;
    for (int64_t i = 0; i < entries; ++i) {
      const int64_t position = IndexBelow(positions[i], shape.capacity);
      if (used <= position) used = position + 1;
    }
  }
  return used;
}

// What no row goes to.
void ZeroUnused(const RedispatchReceiveArgs& args) {
  const MoeShape& shape = args.layout.shape;
  const int64_t used = UsedRows(args);
  const int64_t row_bytes = shape.hidden * ElementBytes(args.out_type);
  ZeroBytes(args.out, used * row_bytes, shape.capacity * row_bytes);
  if (args.dots == nullptr) return;
  for (int64_t c = args.y != nullptr ? used : 0; c < shape.capacity; ++c) args.dots[c] = 0.0f;
}

// One row of a message to one of its positions: out[position] = row * weight, dots[position] = <row, y[position]>.
void ReceiveRow(const RedispatchReceiveArgs& args, const RowOps& ops, const RowFormat& format, bool streamed,
                const char* row, int64_t position) {
  const ElementType row_type = format.type;
  const int64_t hidden = format.hidden;
  if (args.row_weights == nullptr) {
    ReadRow(ops, format, {args.out_type, args.out, args.scales}, row, nullptr, position, streamed);
  } else {
    void* out = ElementAt(args.out, args.out_type, position * hidden);
    SumRow(ops, out, args.out_type, row_type, hidden, 1, /*scaled=*/true, streamed,
           [&](auto visit) { visit(row, args.row_weights[position]); });
  }
  if (args.dots == nullptr || args.y == nullptr) return;

  float from[kChunk];
  float other[kChunk];
  float lanes[kDotLanes] = {};
  for (int64_t begin = 0; begin < hidden; begin += kChunk) {
    const int64_t n = hidden - begin < kChunk ? hidden - begin : kChunk;
    const void* y = ElementAt(args.y, args.y_type, position * hidden + begin);
    ConvertRow(ops, from, ElementType::kFloat32, ElementAt(row, row_type, begin), row_type, n);
    ConvertRow(ops, other, ElementType::kFloat32, y, args.y_type, n);
    ops.dot(lanes, from, other, n);
  }
  args.dots[position] = SumLanes(lanes);
}

}  // namespace

void RedispatchSend(const RedispatchSendArgs& args) {
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  const int64_t ranks = shape.ranks;
  const RowFormat format(layout, args.kind);
  const int64_t stride = format.stride;
  const RowOps& ops = GetRowOps();
  const IndexRange tokens = TokensInRound(shape, args.route, args.t_rows, args.round);
  const bool streamed = VolumeOf(shape, args.route, tokens).PastCaches(stride, args.cache_bytes);
  RowWriter writer(ops, format, {args.x_type, args.x, args.scales}, streamed);
  for (int64_t r = 0; r < ranks; ++r) args.message_bytes[r] = 0;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    writer.StartToken(t);
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t index = IndexBelow(args.route.index[t * ranks + r], shape.max_tokens);
      RowCount count(&args.message_bytes[r]);
      if (index < 0 || count.rows() == shape.MessageRows()) continue;
      writer.Write(At<char>(args.slots[r], layout.PlainPayloadOffset() + count.rows() * stride));
      count.Add(index);
    }
  }
  for (int64_t r = 0; r < ranks; ++r) {
    const RowCount count(&args.message_bytes[r]);
    ZeroBytes(args.slots[r], sizeof(MessageHeader), layout.PlainPayloadOffset());
    WriteHeader(args.stamp, args.kind,
                {.rows = count.rows(), .first_row = count.first_row(), .payload_offset = layout.PlainPayloadOffset()},
                args.slots[r]);
    args.message_bytes[r] = layout.PlainPayloadOffset() + count.rows() * stride;
  }
  if (streamed) ops.finish_streamed();
}

void RedispatchReceive(const RedispatchReceiveArgs& args) {
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  const int64_t local_top_k = shape.LocalTopK();
  const RowOps& ops = GetRowOps();
  const RowFormat format(layout, args.kind);
  const bool streamed = VolumeOf(shape, args.route, args.round).PastCaches(format.stride, args.cache_bytes);
  if (args.round == 0) ZeroUnused(args);
  for (int64_t s = 0; s < shape.ranks; ++s) {
    const IndexRange rows = RowsInRound(shape, args.route, s, args.round);
    const int64_t sent = HeaderOf(args.slots[s]).rows;
    const char* payload = At<char>(args.slots[s], layout.PlainPayloadOffset());
    const int32_t* positions = args.route.positions + (s * shape.max_tokens + rows.begin) * local_top_k;
    for (int64_t j = 0; j < rows.size() && j < sent; ++j) {
      for (int64_t i = 0; i < local_top_k; ++i) {
        const int64_t position = IndexBelow(positions[j * local_top_k + i], shape.capacity);
        if (position < 0) continue;
        ReceiveRow(args, ops, format, streamed, payload + j * format.stride, position);
      }
    }
  }
  if (streamed) ops.finish_streamed();
}

}  // namespace jax_fabric::kernels
