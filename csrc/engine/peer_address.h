// The address of a group as bytes: what a bootstrap carries to peers.
#ifndef JAX_FABRIC_ENGINE_PEER_ADDRESS_H_
#define JAX_FABRIC_ENGINE_PEER_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric {

// Of the engine's own rules (sharding, meaning of descriptors). Groups of different versions refuse each other.
inline constexpr uint16_t kProtocolVersion = 2;

struct PeerAddress {
  std::string name;  // of the group, for messages; at most kMaxNameBytes
  DomainKind kind = DomainKind::kLocal;
  uint64_t incarnation = 0;         // random for each group that was ever made; never 0
  uint64_t max_write_bytes = 0;     // the smallest of the NICs' limits
  uint64_t max_message_bytes = 0;   // of the first NIC
  std::vector<Bytes> nics;          // Domain::address() of each
  uint32_t secret_fingerprint = 0;  // of the secret that it was made with; 0: none

  static constexpr size_t kMaxNameBytes = 256;
  static constexpr size_t kMaxNicAddressBytes = 4096;

  // With a key it contains the proof that whoever made it knows the fabric's secret.
  Bytes Serialize(const FabricKey* key = nullptr) const;
  // Trusts nothing; fields that newer versions append are ignored.
  static Result<PeerAddress> Parse(ByteView bytes);
  // Whether both sides have the same secret, or both none. `bytes` is what this was parsed from.
  Status Authenticate(ByteView bytes, const FabricKey* key) const;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_PEER_ADDRESS_H_
