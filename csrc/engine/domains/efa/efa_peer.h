// Whom an efa domain knows: Remote, a domain at the other end, and EfaPeer, one connection to it that AddPeer made.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_PEER_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_PEER_H_

#include <rdma/fabric.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "csrc/engine/domain.h"
#include "csrc/engine/handshake.h"

namespace jax_fabric::efa {

struct Remote {
  uint64_t incarnation = 0;
  fi_addr_t address = 0;
  PeerId peer = Completion::kUnknownPeer;  // the one of AddPeer that is not removed
  // Its connection to this domain.
  bool inbound = false;
  uint64_t inbound_attempt = 0;
  uint64_t taken = 0;           // its messages that have found a receive
  uint64_t taken_reported = 0;  // as it knows
  // Signs of life.
  int64_t silence_ns = 0;
  uint32_t errors = 0;  // of control messages, since it was heard
  bool gone = false;    // dead, or has left: nothing of it is under way
  bool left = false;    // its domain is closed: nobody will ever come from this address again
  // What the provider still works on, and what waits for it.
  uint32_t controls = 0;
  uint32_t operations = 0;
  uint32_t held = 0;         // messages that wait for a receive
  std::deque<Bytes> outbox;  // control messages that the provider did not take
};

struct EfaPeer {
  uint64_t incarnation = 0;
  Remote* remote = nullptr;  // null: the domain itself
  PeerState state = PeerState::kConnecting;
  std::string cause;  // of kFailed
  std::optional<HandshakeCaller> handshake;
  uint32_t in_flight = 0;           // operations that the provider has
  bool refused = false;             // the provider had no room for a write, and has ended nothing since
  uint32_t refused_poll = 0;        // when it had none
  int64_t draining_ns = 0;          // how long the lost peer's operations have been with the provider since
  ErrorCode code = ErrorCode::kOk;  // of what fails from now on, when it is lost
  bool quiesce = false;             // the other side waits until there are none
  bool removing = false;            // this side waits for the other's
  // Messages.
  uint32_t credits = 0;
  uint64_t sent = 0;
  uint64_t taken = 0;
  // Heartbeats.
  uint64_t pings = 0;
  int64_t next_ping_ns = 0;
  // Failed for a reason that may be the peer's death: reported when a ping that was sent afterwards is answered, or
  // when it is not.
  struct Suspect {
    Completion completion;
    std::string cause;
    uint64_t ping = 0;
  };
  std::vector<Suspect> suspects;
};

// A peer that this domain has removed and that has not yet said that nothing of it is under way.
struct Removal {
  PeerId peer = Completion::kUnknownPeer;
  Remote* remote = nullptr;
  uint64_t attempt = 0;  // of its connection
  int64_t next_ns = 0;
};

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_PEER_H_
