// Rows of tokens into messages and out of them, in whatever form they travel.
#ifndef JAX_FABRIC_KERNELS_CPU_MESSAGE_ROWS_H_
#define JAX_FABRIC_KERNELS_CPU_MESSAGE_ROWS_H_

#include <cstdint>

#include "csrc/kernels/cpu/row_ops.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {

// How rows stand in the messages of one kind of exchange.
struct RowFormat {
  RowFormat(const SlotLayout& layout, ExchangeKind kind);

  int64_t hidden;
  ElementType type;
  int64_t stride;  // bytes from one row to the next
  bool quantised;
  int64_t scales_offset;
  int64_t scale_count;
};

// The rows of a rank's tokens, into the messages that they go to.
class RowWriter {
 public:
  // x, and its scales if it is quantised.
  struct Source {
    ElementType type;
    const void* x;
    const float* scales;
  };
  // `streamed`: see row_ops.h; the caller ends with finish_streamed.
  RowWriter(const RowOps& ops, const RowFormat& format, const Source& source, bool streamed)
      : ops_(ops), format_(format), source_(source), streamed_(streamed) {}

  // All writes until the next call are of that token.
  void StartToken(int64_t token);
  // Padding included.
  void Write(char* to);

 private:
  const void* SourceRow() const;
  void Pack(char* to) const;

  const RowOps& ops_;
  const RowFormat& format_;
  const Source source_;
  const bool streamed_;
  int64_t token_ = 0;
  const char* packed_ = nullptr;  // where it stands in a message already, unless that is what x is
};

// What becomes of a row that was received.
struct RowTarget {
  ElementType type;
  void* rows;
  float* scales;  // of quantised rows that stay so
};

// A row of a message to a position of the target. `copy`: where the same row stands there already, or null. Returns
// where the next copy of this row is best taken from, or null: from the message.
const void* ReadRow(const RowOps& ops, const RowFormat& format, const RowTarget& target, const char* row,
                    const void* copy, int64_t position, bool streamed);

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_CPU_MESSAGE_ROWS_H_
