// The efa domain over a provider of a development machine, as a fabric of the conformance suites.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_FABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_FABRIC_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/domains/efa/efa_domain.h"

namespace jax_fabric::conformance {

class EfaFabric final : public ConformanceFabric {
 public:
  explicit EfaFabric(EfaDomainOptions options) : options_(std::move(options)) {}

  static EfaDomainOptions Options(const std::string& provider) {
    EfaDomainOptions options;
    options.provider = provider;
    if (provider.starts_with("tcp")) options.source_address = "127.0.0.1";
    options.key = ConformanceKey();
    options.heartbeat_interval_us = 200'000;
    options.peer_timeout_us = 5'000'000;  // sanitizers on few cores
    options.connect_timeout_us = 3'000'000;
    return options;
  }

  Result<std::unique_ptr<Domain>> CreateDomain(const DomainShape& shape) override {
    EfaDomainOptions options = options_;
    if (shape.max_outstanding > 0) options.max_outstanding = shape.max_outstanding;
    if (shape.max_receives > 0) options.max_receives = shape.max_receives;
    return CreateEfaDomain(options);
  }

  Result<FabricMemory> Allocate(uint64_t length) override {
    void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return MakeError(ErrorCode::kResourceExhausted, "mmap: {}", strerror(errno));
    return FabricMemory{memory, std::shared_ptr<void>(memory, [length](void* at) { munmap(at, length); })};
  }

 private:
  const EfaDomainOptions options_;
};

inline bool RegisterEfaFabrics() {
  const auto add = [](const char* name, const char* provider) {
    return RegisterConformanceFabric(name, [=] { return std::make_unique<EfaFabric>(EfaFabric::Options(provider)); });
  };
  return add("tcp", "tcp;ofi_rxm") && add("shm", "shm");
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_FABRIC_H_
