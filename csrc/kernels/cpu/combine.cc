// CombineSend and CombineReceive: combine, and the transpose of dispatch.
#include <cstdint>

#include "csrc/kernels/cpu/message.h"
#include "csrc/kernels/cpu/row_ops.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {
namespace {

int64_t ChunkSize(int64_t hidden, int64_t begin) { return hidden - begin < kChunk ? hidden - begin : kChunk; }

// ---- Send ----------------------------------------------------------------------------------------------------------

// One row: the sum over positions[0, L), those that are none left out. The sum starts with its first term, not with 0.
void SumExperts(const CombineSendArgs& args, const RowOps& ops, const int32_t* positions, void* to) {
  const SlotLayout& layout = args.layout;
  const int64_t hidden = layout.shape.hidden;
  const int64_t local_top_k = layout.shape.LocalTopK();
  const int y_type = static_cast<int>(args.y_type);
  float sum[kChunk];
  for (int64_t begin = 0; begin < hidden; begin += kChunk) {
    const int64_t n = ChunkSize(hidden, begin);
    bool first = true;
    for (int64_t i = 0; i < local_top_k; ++i) {
      const int64_t position = IndexBelow(positions[i], layout.shape.capacity);
      if (position < 0) continue;
      const void* from = ElementAt(args.y, args.y_type, position * hidden + begin);
      if (args.row_weights == nullptr) {
        (first ? ops.load : ops.add)[y_type](sum, from, n);
      } else {
        (first ? ops.load_scaled : ops.add_scaled)[y_type](sum, from, args.row_weights[position], n);
      }
      first = false;
    }
    ops.store[static_cast<int>(layout.combine_type)](ElementAt(to, layout.combine_type, begin), sum, n);
  }
}

void WriteRow(const CombineSendArgs& args, const RowOps& ops, const int32_t* positions, char* to) {
  const SlotLayout& layout = args.layout;
  const int64_t hidden = layout.shape.hidden;
  const int64_t row_bytes = hidden * ElementBytes(layout.combine_type);
  int64_t terms = 0;
  int64_t last = -1;
  for (int64_t i = 0; i < layout.shape.LocalTopK(); ++i) {
    const int64_t position = IndexBelow(positions[i], layout.shape.capacity);
    if (position < 0) continue;
    last = position;
    ++terms;
  }
  if (terms == 0) {
    ZeroBytes(to, 0, row_bytes);  // its experts had no room
  } else if (terms == 1 && args.row_weights == nullptr) {
    ConvertRow(ops, to, layout.combine_type, ElementAt(args.y, args.y_type, last * hidden), args.y_type, hidden);
  } else {
    SumExperts(args, ops, positions, to);
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
      : args_(args), shape_(args.layout.shape), type_(args.layout.combine_type), ops_(GetRowOps()) {}

  void WriteToken(int64_t t) const {
    void* to = ElementAt(args_.out, args_.out_type, t * shape_.hidden);
    int64_t terms = 0;
    const void* last = nullptr;
    for (int64_t r = 0; r < shape_.ranks; ++r) {
      const void* row = RowFrom(r, t);
      if (row == nullptr) continue;
      last = row;
      ++terms;
    }
    if (terms == 0) {
      ZeroBytes(to, 0, shape_.hidden * ElementBytes(args_.out_type));
    } else if (terms == 1) {
      ConvertRow(ops_, to, args_.out_type, last, type_, shape_.hidden);
    } else {
      SumRanks(t, to);
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
    return IndexBelow(args_.route.index[t * shape_.ranks + rank], HeaderOf(args_.slots[rank]).rows);
  }

  const char* RowFrom(int64_t rank, int64_t t) const {
    const int64_t index = Index(rank, t);
    if (index < 0) return nullptr;
    const void* slot = args_.slots[rank];
    return At<char>(slot, HeaderOf(slot).payload_offset + index * args_.layout.CombineRowBytes());
  }

  void SumRanks(int64_t t, void* to) const {
    float sum[kChunk];
    for (int64_t begin = 0; begin < shape_.hidden; begin += kChunk) {
      const int64_t n = ChunkSize(shape_.hidden, begin);
      bool first = true;
      for (int64_t r = 0; r < shape_.ranks; ++r) {
        const char* row = RowFrom(r, t);
        if (row == nullptr) continue;
        (first ? ops_.load : ops_.add)[static_cast<int>(type_)](sum, ElementAt(row, type_, begin), n);
        first = false;
      }
      ops_.store[static_cast<int>(args_.out_type)](ElementAt(to, args_.out_type, begin), sum, n);
    }
  }

  const CombineReceiveArgs& args_;
  const MoeShape& shape_;
  const ElementType type_;
  const RowOps& ops_;
};

}  // namespace

void CombineSend(const CombineSendArgs& args) {
  const SlotLayout& layout = args.layout;
  const MoeShape& shape = layout.shape;
  const int64_t local_top_k = shape.LocalTopK();
  const bool with_scalars = args.kind == ExchangeKind::kDispatchBack;
  const RowOps& ops = GetRowOps();
  for (int64_t s = 0; s < shape.ranks; ++s) {
    void* slot = args.slots[s];
    const int64_t rows = CountBelow(args.route.rows[s], shape.max_tokens);
    const int32_t* positions = args.route.positions + s * shape.max_tokens * local_top_k;
    const int64_t payload_offset = layout.PlainPayloadOffset() + (with_scalars ? layout.ScalarsBytes(rows) : 0);
    for (int64_t j = 0; j < rows; ++j) {
      WriteRow(args, ops, positions + j * local_top_k, At<char>(slot, payload_offset + j * layout.CombineRowBytes()));
    }
    if (with_scalars) WriteScalars(args, positions, rows, slot);
    ZeroBytes(slot, sizeof(MessageHeader), layout.PlainPayloadOffset());
    WriteHeader(args.stamp, args.kind, rows, 0, payload_offset, slot);
    args.message_bytes[s] = layout.CombineMessageBytes(rows, with_scalars);
  }
}

void CombineReceive(const CombineReceiveArgs& args) {
  const Receiver receiver(args);
  for (int64_t t = 0; t < args.t_rows; ++t) {
    receiver.WriteToken(t);
    if (args.scalars != nullptr) receiver.WriteScalars(t);
  }
}

}  // namespace jax_fabric::kernels
