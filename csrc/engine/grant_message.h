// What the owner of a grant and its writer say to each other. Both may say the same several times.
#ifndef JAX_FABRIC_ENGINE_GRANT_MESSAGE_H_
#define JAX_FABRIC_ENGINE_GRANT_MESSAGE_H_

#include <cstdint>
#include <optional>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric {

struct GrantMessage {
  enum class Kind : uint8_t {
    kRevoke = 1,   // owner to writer: stop
    kStopped = 2,  // writer to owner: nothing is posted any more, nothing is in flight here
  };
  Kind kind = Kind::kRevoke;
  uint64_t grant = 0;
  uint64_t first_open = 0;  // kRevoke: the owner's grants below this one are over
  // kStopped, of all writes that were ever posted under the grant:
  uint64_t succeeded = 0;  // so many immediates have come, or will
  uint64_t failed = 0;     // may have landed, may still land, or never

  Bytes Serialize() const;
  // Nothing where it is another kind of message, or a damaged one.
  static std::optional<GrantMessage> Parse(ByteView bytes);
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_GRANT_MESSAGE_H_
