// WireMessage: what NIC domains send each other beside writes. Like datagrams: each may get lost, all but the user's
// are said again or come again, and all but the user's carry a tag of the fabric's key.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_NIC_WIRE_MESSAGE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_NIC_WIRE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::nic {

struct WireMessage {
  enum class Kind : uint8_t {
    kHandshake = 1,  // payload: a HandshakeDatagram
    kPing,           // value: its number
    kPong,           // value: the number of the ping that it answers, or 0; taken
    kCredit,         // taken
    kGoodbye,        // the receiver's connection is over: say when nothing of it is under way any more
    kQuiesced,       // the answer to it
    kLeaving,        // the sender's domain ends; value: 1 when nothing of it is under way any more
    kUser,           // payload: the user's message
  };
  static constexpr size_t kHeaderBytes = 4 + 1 + 5 * 8;
  static constexpr size_t kOverhead = kHeaderBytes + FabricKey::kMinTagBytes;

  Kind kind = Kind::kPing;
  uint64_t from = 0;     // incarnation of the sender
  uint64_t to = 0;       // and of whom it is meant for
  uint64_t attempt = 0;  // the connection, as its caller numbers it
  uint64_t value = 0;
  uint64_t taken = 0;  // user's messages of the connection that have found a receive
  ByteView payload;    // a view into what was read

  // Into `out`, which has room for kOverhead and the payload; returns how many bytes that are.
  size_t Write(std::span<std::byte> out, const FabricKey* key) const;
  // Trusts nothing.
  static Result<WireMessage> Read(ByteView bytes, const FabricKey* key);
};

}  // namespace jax_fabric::nic

#endif  // JAX_FABRIC_ENGINE_DOMAINS_NIC_WIRE_MESSAGE_H_
