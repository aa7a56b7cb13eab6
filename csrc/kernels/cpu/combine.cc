// CombineSend and CombineReceive: combine, and the transpose of dispatch.
#include <cstdint>

#include "csrc/kernels/cpu/message.h"
#include "csrc/kernels/cpu/row_ops.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels {
namespace {

// ---- Send ----------------------------------------------------------------------------------------------------------

// One row: the sum over positions[0, L), those that are none left out. The sum starts with its first term, not with 0.
void WriteRow(const CombineSendArgs& args, const RowOps& ops, bool streamed, const int32_t* positions, char* to) {
  const SlotLayout& layout = args.layout;
  const int64_t hidden = layout.shape.hidden;
  const int64_t row_bytes = hidden * ElementBytes(layout.combine_type);
  const bool weighted = args.row_weights != nullptr;
  const auto visit_terms = [&](auto visit) {
    for (int64_t i = 0; i < layout.shape.LocalTopK(); ++i) {
      const int64_t position = IndexBelow(positions[i], layout.shape.capacity);
      if (position < 0) continue;
      visit(ElementAt(args.y, args.y_type, position * hidden), weighted ? args.row_weights[position] : 1.0f);
    }
  };
  int64_t terms = 0;
  const void* last = nullptr;
  visit_terms([&](const void* row, float) {
    last = row;
    ++terms;
  });
  if (terms == 0) {
    ZeroBytes(to, 0, row_bytes);  // its experts had no room
  } else if (terms == 1 && !weighted) {
    ConvertRow(ops, to, layout.combine_type, last, args.y_type, hidden, streamed);
  } else {
    SumRow(ops, to, layout.combine_type, args.y_type, hidden, terms, weighted, streamed, visit_terms);
  }
  ZeroRowPadding(to, row_bytes, layout.CombineRowBytes());
}

void WriteScalars(const CombineSendArgs& args, const int32_t* positions, int64_t rows, void* slot) {
  const SlotLayout& layout = args.layout;
  auto* scalars = At<float>(slot, layout.PlainPayloadOffset());
  const int64_t count = rows * layout.shape.LocalTopK();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = IndexBelow(positions[i], layout.shape.capacity);
    scalars[i] = position < 0 || args.row_scalars == nullptr ? 0.0f : args.row_scalars[position];
  }
  ZeroBytes(scalars, count * sizeof(float), layout.ScalarsBytes(rows));
}

// ---- Receive -------------------------------------------------------------------------------------------------------

class Receiver {
 public:
  explicit Receiver(const CombineReceiveArgs& args)
      : args_(args),
        shape_(args.layout.shape),
        type_(args.layout.combine_type),
        ops_(GetRowOps()),
        tokens_(TokensInRound(shape_, args.route, args.t_rows, args.round)),
        streamed_(VolumeOf(shape_, args.route, tokens_).PastCaches(args.layout.CombineRowBytes(), args.cache_bytes)) {}

  ~Receiver() {
    if (streamed_) ops_.finish_streamed();
  }

  // Those whose rows are here.
  const IndexRange& tokens() const { return tokens_; }

  void WriteToken(int64_t t) const {
    void* to = ElementAt(args_.out, args_.out_type, t * shape_.hidden);
    const auto visit_terms = [&](auto visit) {
      for (int64_t r = 0; r < shape_.ranks; ++r) {
        const char* row = RowFrom(r, t);
        if (row != nullptr) visit(row, 1.0f);
      }
    };
    int64_t terms = 0;
    const void* last = nullptr;
    visit_terms([&](const void* row, float) {
      last = row;
      ++terms;
    });
    if (terms == 0) {
      ZeroBytes(to, 0, shape_.hidden * ElementBytes(args_.out_type));
    } else if (terms == 1) {
      ConvertRow(ops_, to, args_.out_type, last, type_, shape_.hidden, streamed_);
    } else {
      SumRow(ops_, to, args_.out_type, type_, shape_.hidden, terms, /*scaled=*/false, streamed_, visit_terms);
    }
  }

  void WriteScalars(int64_t t) const {
    const int64_t local_top_k = shape_.LocalTopK();
    for (int64_t k = 0; k < shape_.top_k; ++k) {
      const int64_t slot = IndexBelow(args_.route.slot[t * shape_.top_k + k], shape_.ranks * local_top_k);
      float value = 0.0f;
      if (slot >= 0) {
        const int64_t rank = slot / local_top_k;
        const int64_t row = Index(rank, t);
        const float* scalars = At<float>(args_.slots[rank], args_.layout.PlainPayloadOffset());
        if (row >= 0) value = scalars[row * local_top_k + slot % local_top_k];
      }
      args_.scalars[t * shape_.top_k + k] = value;
    }
  }

 private:
  // Row of token t in the message from a rank. A message is never read past the rows that it says it has.
  int64_t Index(int64_t rank, int64_t t) const {
    const MessageHeader& header = HeaderOf(args_.slots[rank]);
    const int64_t row = int64_t{args_.route.index[t * shape_.ranks + rank]} - header.first_row;
    return row >= 0 && row < header.rows ? row : -1;
  }

  const char* RowFrom(int64_t rank, int64_t t) const {
    const int64_t index = Index(rank, t);
    if (index < 0) return nullptr;
    const void* slot = args_.slots[rank];
    return At<char>(slot, HeaderOf(slot).payload_offset + index * args_.layout.CombineRowBytes());
  }

  const CombineReceiveArgs& args_;
  const MoeShape& shape_;
  const ElementType type_;
  const RowOps& ops_;
  const IndexRange tokens_;
  const bool streamed_;
};

}  // namespace

void CombineSend(const CombineSendArgs& args) {
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  const int64_t local_top_k = shape.LocalTopK();
  const bool with_scalars = args.kind == ExchangeKind::kDispatchBack;
  const RowOps& ops = GetRowOps();
  const bool streamed = VolumeOf(shape, args.route, args.round).PastCaches(layout.CombineRowBytes(), args.cache_bytes);
  for (int64_t s = 0; s < shape.ranks; ++s) {
    void* slot = args.slots[s];
    const IndexRange range = RowsInRound(shape, args.route, s, args.round);
    const int64_t rows = range.size();
    const int32_t* positions = args.route.positions + (s * shape.max_tokens + range.begin) * local_top_k;
    const int64_t payload_offset = layout.PlainPayloadOffset() + (with_scalars ? layout.ScalarsBytes(rows) : 0);
    for (int64_t j = 0; j < rows; ++j) {
      WriteRow(args, ops, streamed, positions + j * local_top_k,
               At<char>(slot, payload_offset + j * layout.CombineRowBytes()));
    }
    if (with_scalars) WriteScalars(args, positions, rows, slot);
    ZeroBytes(slot, sizeof(MessageHeader), layout.PlainPayloadOffset());
    WriteHeader(args.stamp, args.kind, {.rows = rows, .first_row = range.begin, .payload_offset = payload_offset},
                slot);
    args.message_bytes[s] = layout.CombineMessageBytes(rows, with_scalars);
  }
  if (streamed) ops.finish_streamed();
}

void CombineReceive(const CombineReceiveArgs& args) {
  const Receiver receiver(args);
  for (int64_t t = receiver.tokens().begin; t < receiver.tokens().end; ++t) {
    receiver.WriteToken(t);
    if (args.scalars != nullptr) receiver.WriteScalars(t);
  }
}

}  // namespace jax_fabric::kernels
