// Memory as requests name it: of this process, and of a peer.
#ifndef JAX_FABRIC_ENGINE_MEMORY_H_
#define JAX_FABRIC_ENGINE_MEMORY_H_

#include <cstdint>
#include <vector>

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
  uint64_t length = 0;
  std::vector<Nic> nics;
  // Of the group that registered it; requests to another one are refused. 0: unknown, not checked.
  uint64_t incarnation = 0;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_MEMORY_H_
