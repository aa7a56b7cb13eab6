// Handshake: how two ends make a connection over datagrams that get lost, doubled, late and out of order. State
// machines without a clock, a thread or a socket of their own; the transport sends what they say and tells them what
// came.
//
// The caller says hello until it is answered, at growing intervals. The answerer gets its end ready before it answers,
// and says the same again to a hello that it has answered already. Attempts of one caller are numbered; what belongs to
// an earlier one is ignored, so no datagram can be too late to do harm. A hello for another incarnation is refused: the
// caller's address is stale.
#ifndef JAX_FABRIC_ENGINE_HANDSHAKE_H_
#define JAX_FABRIC_ENGINE_HANDSHAKE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric {

struct HandshakeDatagram {
  enum class Kind : uint8_t { kHello = 1, kAnswer = 2, kRefusal = 3 };
  static constexpr size_t kMaxPayloadBytes = 1024;  // a datagram has to fit into one packet

  Kind kind = Kind::kHello;
  uint64_t from = 0;     // incarnation of the sender
  uint64_t to = 0;       // incarnation that it is meant for
  uint64_t attempt = 0;  // the caller's
  Bytes payload;         // the transport's: queue pairs, ...; of a refusal its reason as text

  Bytes Serialize() const;
  // Trusts nothing; fields that newer versions append are ignored.
  static Result<HandshakeDatagram> Parse(ByteView bytes);
};

struct HandshakePolicy {
  int64_t first_pause_ns = 20'000'000;  // after a hello; twice as long after each further one
  int64_t longest_pause_ns = 1'000'000'000;
  int64_t timeout_ns = 30'000'000'000;
};

// One attempt of one caller to reach one peer.
class HandshakeCaller {
 public:
  // `hello`: without its kind. Attempts of the same caller at the same peer rise.
  HandshakeCaller(HandshakeDatagram hello, HandshakePolicy policy, int64_t now_ns);

  PeerState state() const { return state_; }     // kConnecting, then kReady or kFailed
  ByteView answer() const { return answer_; }    // the peer's payload, when kReady
  const Error& error() const { return error_; }  // when kFailed

  // What to send now, if anything. `draw`: from [0, 1); it keeps callers that started together apart.
  std::optional<HandshakeDatagram> Poll(int64_t now_ns, double draw);
  // When to poll next.
  int64_t next_ns() const { return next_ns_; }
  // Anything that came from there.
  void OnDatagram(const HandshakeDatagram& datagram);
  // Why it cannot be.
  void Fail(ErrorCode code, std::string cause);
  uint64_t hellos() const { return hellos_; }

 private:
  const HandshakeDatagram hello_;
  const HandshakePolicy policy_;
  const int64_t deadline_ns_;
  int64_t next_ns_;
  int64_t pause_ns_;
  uint64_t hellos_ = 0;
  PeerState state_ = PeerState::kConnecting;
  Bytes answer_;
  Error error_;
};

// One end, for all who call.
class HandshakeAnswerer {
 public:
  // Gets this end ready for a new connection, in place of an older one of the same caller, and returns what the caller
  // has to know. An error refuses it, and is not remembered.
  using Accept = std::function<Result<Bytes>(const HandshakeDatagram& hello)>;

  HandshakeAnswerer(uint64_t incarnation, Accept accept) : incarnation_(incarnation), accept_(std::move(accept)) {}

  // What to send back, if anything.
  std::optional<HandshakeDatagram> OnHello(const HandshakeDatagram& hello);
  // Its connections are over. An attempt that was answered is not made again by a late hello.
  void Forget(uint64_t caller);
  size_t accepted() const { return accepted_; }

 private:
  struct Known {
    uint64_t attempt = 0;
    std::optional<HandshakeDatagram> answer;  // not after Forget
  };

  const uint64_t incarnation_;
  const Accept accept_;
  size_t accepted_ = 0;
  std::unordered_map<uint64_t, Known> callers_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_HANDSHAKE_H_
