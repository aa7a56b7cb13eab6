// Whom a connectx domain knows: Remote, a domain at the other end, Connection, two queue pairs in one direction, and
// ConnectXPeer, what AddPeer made.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_PEER_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_PEER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/connectx/connectx_address.h"
#include "csrc/engine/domains/connectx/datagram_endpoint.h"
#include "csrc/engine/domains/connectx/lane.h"
#include "csrc/engine/handshake.h"

namespace jax_fabric::connectx {

struct Remote;

struct Connection {
  uint64_t attempt = 0;  // as its caller numbers it
  Remote* remote = nullptr;
  PeerId peer = Completion::kUnknownPeer;     // of this side's connection: whom it is to
  uint32_t inbound_number = 0;                // of the other side's: of the queue pair that messages come by
  PeerId removal = Completion::kUnknownPeer;  // which peer is removed when this is closed
  bool renew = false;                         // make it again when it is closed
  int64_t close_by_ns = 0;                    // the device is not waited for any longer; 0: it was not asked yet
  std::array<std::unique_ptr<Lane>, ConnectionEnd::kQueuePairs> lanes;

  Lane& writes() { return *lanes[ConnectionEnd::kWrites]; }
  Lane& messages() { return *lanes[ConnectionEnd::kMessages]; }
  bool closed() const { return lanes[0]->closed() && lanes[1]->closed(); }
};

struct Remote {
  uint64_t incarnation = 0;
  ConnectXAddress address;
  DatagramRoute route;
  PeerId peer = Completion::kUnknownPeer;  // the one of AddPeer that is not removed
  // Its connection to this domain.
  std::unique_ptr<Connection> inbound;
  uint64_t taken = 0;           // its messages that have found a receive
  uint64_t taken_reported = 0;  // as it knows
  int64_t silence_ns = 0;
  uint32_t held = 0;  // messages that wait for a receive
};

struct ConnectXPeer {
  uint64_t incarnation = 0;
  Remote* remote = nullptr;  // null: the domain itself
  PeerState state = PeerState::kConnecting;
  std::string cause;  // of kFailed
  bool removing = false;
  uint32_t closing = 0;                      // connections that are not closed yet, of a peer that is removed
  std::optional<HandshakeCaller> handshake;  // under way
  std::unique_ptr<Connection> connection;    // what is posted goes to it when there is no handshake
  int64_t broken_ns = 0;                     // since when one of its lanes has been broken, or 0
  // Messages.
  uint32_t credits = 0;
  uint64_t sent = 0;
  uint64_t taken = 0;
  int64_t next_ping_ns = 0;

  bool connected() const { return connection != nullptr && !handshake.has_value(); }
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_PEER_H_
