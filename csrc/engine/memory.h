// Memory as requests name it: of this process, and of a peer.
#ifndef JAX_FABRIC_ENGINE_MEMORY_H_
#define JAX_FABRIC_ENGINE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/engine/piece_layout.h"

namespace jax_fabric {

// A group drives at most this many NICs.
inline constexpr uint32_t kMaxNics = 4;

// Memory of this process registered with every NIC of the group.
struct RegisteredMemory {
  void* address = nullptr;
  uint64_t length = 0;
  uint32_t id = 0;
};

// Memory of a peer: what RegisteredMemory looks like from outside. Travels as bytes (see descriptor.h).
struct RemoteMemory {
  struct Nic {
    uint64_t remote_address;
    uint64_t remote_key;
  };
  // Of memory that its NICs had to register in pieces (piece_layout.h).
  struct Pieces {
    uint64_t stride = 0;    // from a piece's first byte to the next one's
    uint64_t offset = 0;    // of the memory's first byte in the first piece; below stride
    std::vector<Nic> nics;  // of the pieces' first bytes: all NICs of the first piece, of the second, ...
  };
  uint64_t length = 0;
  std::vector<Nic> nics;  // of the first byte
  // Of the group that registered it; requests to another one are refused. 0: unknown, not checked.
  uint64_t incarnation = 0;
  std::shared_ptr<const Pieces> pieces = nullptr;  // null: it is one

  // Where the byte at `offset` is, for a write of at most one part.
  Nic At(uint64_t offset, size_t nic) const;
  static Nic At(const Pieces& pieces, uint64_t offset_in_pieces, size_t nic, size_t nic_count);
};

inline RemoteMemory::Nic RemoteMemory::At(const Pieces& pieces, uint64_t offset_in_pieces, size_t nic,
                                          size_t nic_count) {
  const uint64_t piece = PieceAt(offset_in_pieces, pieces.stride, pieces.nics.size() / nic_count);
  const Nic& first = pieces.nics[piece * nic_count + nic];
  return {first.remote_address + (offset_in_pieces - piece * pieces.stride), first.remote_key};
}

inline RemoteMemory::Nic RemoteMemory::At(uint64_t offset, size_t nic) const {
  if (pieces != nullptr) return At(*pieces, pieces->offset + offset, nic, nics.size());
  return {nics[nic].remote_address + offset, nics[nic].remote_key};
}

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_MEMORY_H_
