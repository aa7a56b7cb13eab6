// FabricRegistrar: memory registered with libfabric.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FABRIC_REGISTRAR_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FABRIC_REGISTRAR_H_

#include <cstdint>

#include "csrc/engine/domains/efa/fabric_endpoint.h"
#include "csrc/engine/domains/nic/memory_registrar.h"

namespace jax_fabric::efa {

class FabricRegistrar final : public nic::MemoryRegistrar {
 public:
  FabricRegistrar(FabricEndpoint& endpoint, uint64_t incarnation, bool device_memory);

  Result<nic::Registration> Map(void* address, uint64_t length, MemoryKind kind, Access access) override;
  bool virtual_addresses() const override { return virtual_addresses_; }

 private:
  FabricEndpoint& endpoint_;
  const bool device_memory_;
  const bool virtual_addresses_;
  uint32_t next_key_;  // of providers that let us choose: never used twice
};

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FABRIC_REGISTRAR_H_
