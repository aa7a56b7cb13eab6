// What the conformance suite has to know of the efa domain over a NIC.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKE_SRD_CASE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKE_SRD_CASE_H_

#include "csrc/engine/domains/conformance/conformance_suite.h"

namespace jax_fabric::conformance {

// NICs do not look at where a write without bytes would go.
inline ConformanceCase FakeSrdCase(const char* fabric, NodePlacement placement) {
  return {.fabric = fabric, .placement = placement, .largest_write = 8 << 20, .checks_empty_writes = false};
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKE_SRD_CASE_H_
