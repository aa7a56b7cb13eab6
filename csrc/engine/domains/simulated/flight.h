#ifndef JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_FLIGHT_H_
#define JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_FLIGHT_H_

#include <cstdint>
#include <vector>

#include "csrc/engine/domain.h"

namespace jax_fabric::simulated {

// A posted write or send that is on its way.
struct Flight {
  // When a write that is to fail does so.
  enum class Failure : uint8_t { kNone, kBefore, kMidway, kAfter };

  uint64_t id = 0;  // 0: this place is free
  uint32_t source = 0;
  uint32_t target = 0;
  WriteRequest request;  // of a send: peer, context, source, length
  bool is_send = false;
  bool silent = false;
  bool completed = false;  // the sender knows how it ended
  bool landing_late = false;
  bool refused = false;  // the target has removed its source as a peer
  Failure failure = Failure::kNone;
  ErrorCode failure_code = ErrorCode::kOk;
  uint64_t segments = 0;  // that are still to land
  uint64_t landed_bytes = 0;
  std::vector<std::byte> copy;  // of the payload, where the sender may reuse it already
};

}  // namespace jax_fabric::simulated

#endif  // JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_FLIGHT_H_
