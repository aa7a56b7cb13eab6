// Messages of a fabric with a secret: what is sent is the message and a trailer that proves who sent it to whom, and
// that it comes for the first time.
#ifndef JAX_FABRIC_ENGINE_MESSAGE_AUTHENTICATOR_H_
#define JAX_FABRIC_ENGINE_MESSAGE_AUTHENTICATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include "csrc/base/fabric_key.h"
#include "csrc/engine/replay_filter.h"

namespace jax_fabric {

class MessageAuthenticator {
 public:
  static constexpr uint64_t kTrailerBytes = 32;
  enum class Verdict : uint8_t { kGenuine, kForged, kReplayed };

  MessageAuthenticator(std::shared_ptr<const FabricKey> key, uint64_t own_incarnation)
      : key_(std::move(key)), own_incarnation_(own_incarnation) {}

  // Any thread. Fills the last kTrailerBytes of `packet`, behind the message. No two messages from here to that
  // receiver have the same sequence number.
  void Seal(std::span<std::byte> packet, uint64_t receiver_incarnation, uint64_t sequence) const;

  // One thread. If genuine, the message is all of `packet` but kTrailerBytes at its end, which this changes. From
  // another sender than the expected one it is a forgery; 0: from anybody who knows the secret.
  Verdict Open(std::span<std::byte> packet, uint64_t expected_sender);

 private:
  const std::shared_ptr<const FabricKey> key_;
  const uint64_t own_incarnation_;
  // By incarnation. Only who knows the secret gets an entry, and it stays: without it replays would be new again.
  std::unordered_map<uint64_t, ReplayFilter> senders_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_MESSAGE_AUTHENTICATOR_H_
