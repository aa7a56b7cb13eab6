// Memory that is longer than a NIC registers at once: it is registered in pieces that overlap.
//
// A posted write names one registration at each end, and each part of a transfer brings one immediate, so seams must
// not cut parts: a receiver that counts them does not know where the sender's seams are. Pieces overlap by as much as
// the longest part of this group's transfers, which is at most half a piece (GroupWriteLimit), so every part lies
// inside of one piece at both ends, and nobody but who posts it needs to know that there are several.
#ifndef JAX_FABRIC_ENGINE_PIECE_LAYOUT_H_
#define JAX_FABRIC_ENGINE_PIECE_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "csrc/engine/domain.h"

namespace jax_fabric {

// Of one registered memory; all offsets are from its first byte.
struct PieceLayout {
  static constexpr uint64_t kMaxPieces = 4096;

  uint64_t stride = 0;  // piece i begins at i * stride
  uint64_t bytes = 0;   // of each piece; the last one may be shorter
  uint64_t count = 1;
};

// The longest write that every NIC of a group takes, in memory in pieces, too. Before PartLimit.
uint64_t GroupWriteLimit(std::span<const std::unique_ptr<Domain>> domains);

// `write_limit` is GroupWriteLimit's. The count may be above kMaxPieces.
PieceLayout LayoutOf(uint64_t length, std::span<const std::unique_ptr<Domain>> domains, uint64_t write_limit);

// The piece that has the byte at `offset`, and the longest part that begins there. At the end: the last piece.
inline uint64_t PieceAt(uint64_t offset, uint64_t stride, uint64_t count) {
  return std::min(offset / stride, count - 1);
}

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_PIECE_LAYOUT_H_
