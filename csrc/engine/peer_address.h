// The address of a group as bytes: what a bootstrap carries to peers.
#ifndef JAX_FABRIC_ENGINE_PEER_ADDRESS_H_
#define JAX_FABRIC_ENGINE_PEER_ADDRESS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric {

// Of the engine's own rules (sharding, meaning of descriptors). Groups of different versions refuse each other.
inline constexpr uint16_t kProtocolVersion = 1;

struct PeerAddress {
  std::string name;  // of the group, for messages; at most kMaxNameBytes
  DomainKind kind = DomainKind::kLocal;
  uint64_t incarnation = 0;        // random for each group that was ever made; never 0
  uint64_t max_write_bytes = 0;    // the smallest of the NICs' limits
  uint64_t max_message_bytes = 0;  // of the first NIC
  std::vector<Bytes> nics;         // Domain::address() of each
  // Reserved for a proof that whoever made the address knows the fabric's secret; zero until then.
  std::array<std::byte, 32> authenticator{};

  static constexpr size_t kMaxNameBytes = 256;
  static constexpr size_t kMaxNicAddressBytes = 4096;

  Bytes Serialize() const;
  // Trusts nothing; fields that newer versions append are ignored.
  static Result<PeerAddress> Parse(ByteView bytes);
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_PEER_ADDRESS_H_
