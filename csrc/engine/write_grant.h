// WriteGrant: leave to write into another group's memory, which that group can take back.
#ifndef JAX_FABRIC_ENGINE_WRITE_GRANT_H_
#define JAX_FABRIC_ENGINE_WRITE_GRANT_H_

#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric {

// Made by the owner of the memory (DomainGroup::OpenGrant), who sends it to the writer as part of whatever asks for the
// writes. The writer puts it into RequestOptions::grant.
struct WriteGrant {
  uint64_t id = 0;          // of the owner's group; rises, never used again
  uint64_t first_open = 0;  // the owner's grants below this one are over
  uint32_t immediate = 0;   // the owner's; every write under the grant brings it

  Bytes Serialize() const;
  // Trusts nothing; fields that newer versions append are ignored.
  static Result<WriteGrant> Parse(ByteView bytes);

  bool operator==(const WriteGrant&) const = default;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_WRITE_GRANT_H_
