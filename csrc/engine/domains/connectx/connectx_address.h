// What ConnectXDomain::address() says, and what both sides say in the handshake.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_ADDRESS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_ADDRESS_H_

#include <array>
#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::connectx {

// Where a port is in its network.
struct PortAddress {
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;        // of InfiniBand
  uint8_t link_layer = 0;  // as libibverbs numbers it: 1 InfiniBand, 2 Ethernet
  uint8_t mtu = 0;         // as libibverbs numbers it: 1 is 256 bytes, 5 is 4096
};

struct ConnectXAddress {
  uint64_t incarnation = 0;  // random: of the domain
  PortAddress port;
  uint32_t datagram_queue_pair = 0;
  uint32_t datagram_key = 0;
  uint32_t message_bytes = 0;    // that it has room for in each
  uint32_t message_credits = 0;  // how many messages may be on the way to it from one peer

  Bytes Seal() const;
  static Result<ConnectXAddress> Open(ByteView bytes);
};

// One end of a connection.
struct QueuePairAddress {
  uint32_t number = 0;        // of 24 bits, as is the next
  uint32_t first_packet = 0;  // the number that its packets begin with
};
struct ConnectionEnd {
  static constexpr size_t kWrites = 0;
  static constexpr size_t kMessages = 1;
  static constexpr size_t kQueuePairs = 2;

  std::array<QueuePairAddress, kQueuePairs> queue_pairs{};
  uint64_t renews = 0;  // of a hello: the attempt whose connection this one takes the place of, or 0
  Bytes caller;         // of a hello: the caller's ConnectXAddress

  Bytes Seal() const;
  static Result<ConnectionEnd> Open(ByteView bytes);
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_ADDRESS_H_
