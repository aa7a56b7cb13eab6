// What the conformance suite has to know of the connectx domain.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_CASE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_CASE_H_

#include <cstdint>

#include "csrc/engine/domains/conformance/conformance_suite.h"

namespace jax_fabric::conformance {

// NICs do not look at where a write without bytes would go.
inline ConformanceCase ConnectXCase(const char* fabric, NodePlacement placement, uint64_t largest_write) {
  return {.fabric = fabric, .placement = placement, .largest_write = largest_write, .checks_empty_writes = false};
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_CASE_H_
