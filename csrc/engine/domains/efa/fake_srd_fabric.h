// The efa domain over libfabric's real provider "efa" on a fake SRD device, as fabrics of the conformance suites.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKE_SRD_FABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKE_SRD_FABRIC_H_

#include <cstdlib>
#include <memory>
#include <string>

#include "csrc/engine/domains/efa/efa_fabric.h"
#include "csrc/engine/domains/efa/fakesrd/fake_srd.h"
#include "efa_provider.h"

namespace jax_fabric::conformance {

inline EfaDomainOptions FakeSrdOptions(const std::string& provider) {
  setenv("FI_PROVIDER_PATH", kEfaProviders, 1);
  EfaDomainOptions options = EfaFabric::Options(provider);
  options.library = kEfaLibfabric;
  return options;
}

// "unordered": a device as SRD is. "faults": delays, posts that are refused, receivers that are not ready.
inline bool RegisterFakeSrdFabrics(const std::string& provider) {
  const auto add = [&](const char* name, const fake_srd::Faults& faults) {
    return RegisterConformanceFabric(name, [=] {
      fake_srd::SetFaults(faults);
      return std::make_unique<EfaFabric>(FakeSrdOptions(provider));
    });
  };
  return add("unordered", {}) &&
         add("faults",
             {.seed = 7, .start_delay_us = 300, .hold = 0.2, .send_queue_full = 0.05, .receiver_not_ready = 0.05});
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKE_SRD_FABRIC_H_
