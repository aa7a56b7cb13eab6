#include "csrc/kernels/cpu/message_rows.h"

#include <cstdint>
#include <cstring>

#include "csrc/kernels/cpu/message.h"
#include "csrc/kernels/cpu/quantise.h"

namespace jax_fabric::kernels {

RowFormat::RowFormat(const SlotLayout& layout, ExchangeKind kind)
    : hidden(layout.shape.hidden),
      type(kind == ExchangeKind::kDispatch ? layout.dispatch_type : layout.redispatch_type),
      stride(kind == ExchangeKind::kDispatch ? layout.DispatchRowBytes() : layout.RedispatchRowBytes()),
      quantised(kind == ExchangeKind::kDispatch && layout.quantised),
      scales_offset(layout.ScalesOffset()),
      scale_count(layout.ScalesOfRow()) {}

void RowWriter::StartToken(int64_t token) {
  token_ = token;
  packed_ = nullptr;
}

const void* RowWriter::SourceRow() const { return ElementAt(source_.x, source_.type, token_ * format_.hidden); }

void RowWriter::Pack(char* to) const {
  int64_t used_bytes = format_.hidden * ElementBytes(format_.type);
  if (format_.quantised) {
    auto* scales = At<float>(to, format_.scales_offset);
    ZeroBytes(to, used_bytes, format_.scales_offset);
    used_bytes = format_.scales_offset + format_.scale_count * static_cast<int64_t>(sizeof(float));
    if (source_.type == format_.type) {
      std::memcpy(to, SourceRow(), format_.hidden);
      std::memcpy(scales, source_.scales + token_ * format_.scale_count, format_.scale_count * sizeof(float));
    } else {
      QuantiseRow(ops_, to, scales, SourceRow(), source_.type, format_.hidden);
    }
  } else {
    ConvertRow(ops_, to, format_.type, SourceRow(), source_.type, format_.hidden);
  }
  ZeroRowPadding(to, used_bytes, format_.stride);
}

void RowWriter::Write(char* to) {
  if (source_.type == format_.type && !format_.quantised) {
    ConvertRow(ops_, to, format_.type, SourceRow(), source_.type, format_.hidden, streamed_);
    ZeroRowPadding(to, format_.hidden * ElementBytes(format_.type), format_.stride);
  } else if (packed_ == nullptr) {
    Pack(to);
    packed_ = to;
  } else if (streamed_) {
    ops_.copy_streamed(to, packed_, format_.stride);
  } else {
    std::memcpy(to, packed_, format_.stride);
  }
}

const void* ReadRow(const RowOps& ops, const RowFormat& format, const RowTarget& target, const char* row,
                    const void* copy, int64_t position, bool streamed) {
  void* to = ElementAt(target.rows, target.type, position * format.hidden);
  const auto* scales = At<float>(row, format.scales_offset);
  const bool as_it_is = target.type == format.type;
  if (copy != nullptr) {
    ConvertRow(ops, to, target.type, copy, target.type, format.hidden, streamed);
  } else if (format.quantised && !as_it_is) {
    DequantiseRow(ops, to, target.type, row, scales, format.hidden);
  } else {
    // A converted row is copied from, so it is kept in the cache.
    ConvertRow(ops, to, target.type, row, format.type, format.hidden, streamed && as_it_is);
  }
  if (format.quantised && as_it_is) {
    std::memcpy(target.scales + position * format.scale_count, scales, format.scale_count * sizeof(float));
  }
  // A converted row needs no second conversion, and any copy is in the cache as well as the message is.
  if (copy != nullptr) return copy;
  return streamed && as_it_is ? nullptr : to;
}

}  // namespace jax_fabric::kernels
