#ifndef JAX_FABRIC_ENGINE_GROUP_OPTIONS_H_
#define JAX_FABRIC_ENGINE_GROUP_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engine/domain.h"

namespace jax_fabric {

struct GroupOptions {
  std::string name = {};  // for messages, here and at peers
  // 1 to 4 of one kind: the NICs of one device, in the order in which peers have theirs.
  std::vector<std::unique_ptr<Domain>> domains = {};
  // Requests (not prepared ones) that exist at once; more wait until one ends or their deadline passes.
  uint32_t max_requests = 16384;
  // Messages under way, and their longest size (0: what the domain takes, at most 8 KiB).
  uint32_t send_slots = 64;
  uint64_t max_send_bytes = 0;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_GROUP_OPTIONS_H_
