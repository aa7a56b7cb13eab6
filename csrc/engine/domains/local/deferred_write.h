// A write that outlives its PostWrite: too long for one slice, the peer's memory is not mapped yet, or only the peer
// can write there.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DEFERRED_WRITE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DEFERRED_WRITE_H_

#include <cstdint>
#include <optional>

#include "csrc/engine/domain.h"

namespace jax_fabric::local {

struct DeferredWrite {
  WriteRequest request;
  bool streaming;
  bool bounces;
  uint64_t done = 0;                    // bytes that are there
  std::optional<uint32_t> bounce = {};  // slot in which the next bytes are on the way
  uint64_t bounce_bytes = 0;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DEFERRED_WRITE_H_
