// VerbsRegistrar: memory registered with libibverbs.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_REGISTRAR_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_REGISTRAR_H_

#include <cstdint>

#include "csrc/engine/domains/connectx/verbs_device.h"
#include "csrc/engine/domains/nic/memory_registrar.h"

namespace jax_fabric::connectx {

class VerbsRegistrar final : public nic::MemoryRegistrar {
 public:
  VerbsRegistrar(VerbsDevice& device, uint64_t max_bytes) : device_(device), max_bytes_(max_bytes) {}

  Result<nic::Registration> Map(void* address, uint64_t length, MemoryKind kind, Access access) override;
  bool virtual_addresses() const override { return true; }

 private:
  VerbsDevice& device_;
  const uint64_t max_bytes_;
  // Payloads may pass each other on the bus; an immediate's completion passes none. Until a device refuses it.
  bool relaxed_ordering_ = true;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_REGISTRAR_H_
