// VerbsRegistrar: memory registered with libibverbs.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_REGISTRAR_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_REGISTRAR_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "csrc/engine/domains/connectx/verbs_device.h"
#include "csrc/engine/domains/nic/cuda_memory.h"
#include "csrc/engine/domains/nic/memory_registrar.h"

namespace jax_fabric::connectx {

class VerbsRegistrar final : public nic::MemoryRegistrar {
 public:
  using Exporter = std::function<Result<nic::DmaBuf>(const void* address, uint64_t length)>;

  // `exporter`: of memory of GPUs.
  VerbsRegistrar(VerbsDevice& device, uint64_t max_bytes, Exporter exporter)
      : device_(device), max_bytes_(max_bytes), exporter_(std::move(exporter)) {}

  Result<nic::Registration> Map(void* address, uint64_t length, MemoryKind kind, Access access) override;
  bool virtual_addresses() const override { return true; }

 private:
  // errno in `error` where it is null.
  ibv_mr* MapHost(void* address, uint64_t length, unsigned flags, int& error) const;
  Result<ibv_mr*> MapDevice(void* address, uint64_t length, unsigned flags) const;

  VerbsDevice& device_;
  const uint64_t max_bytes_;
  const Exporter exporter_;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_REGISTRAR_H_
