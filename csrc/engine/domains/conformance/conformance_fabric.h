// What a transport brings to be held to the contract of domain.h. A transport's test instantiates the suite:
//
//   const bool kRegistered = RegisterConformanceFabric("local", [] { return std::make_unique<LocalFabric>(); });
//   INSTANTIATE_TEST_SUITE_P(Local, DomainConformance, testing::Values(
//       ConformanceCase{.fabric = "local", .placement = NodePlacement::kOneThread}, ...), CaseName);
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_CONFORMANCE_FABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_CONFORMANCE_FABRIC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "csrc/base/clock.h"
#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::conformance {

// Asks for a domain that is full early. 0: the transport's default. A transport may round up.
struct DomainShape {
  uint32_t max_outstanding = 0;
  uint32_t max_receives = 0;
};

// Host memory that can be registered and written by every peer of the test, zero-filled and sparse.
struct FabricMemory {
  void* address = nullptr;
  std::shared_ptr<void> owner;
};

// One a node, or one for all nodes where they share a thread (a simulated network lives in it).
class ConformanceFabric {
 public:
  virtual ~ConformanceFabric() = default;
  virtual Result<std::unique_ptr<Domain>> CreateDomain(const DomainShape& shape) = 0;
  virtual Result<FabricMemory> Allocate(uint64_t length) = 0;
  // Called between polls: a virtual clock moves on here.
  virtual void Step() {}
  virtual const Clock& clock() const { return SteadyClock::Get(); }
};

using FabricFactory = std::function<std::unique_ptr<ConformanceFabric>()>;

// Of the secret that all nodes share, in whatever process they are.
std::shared_ptr<const FabricKey> ConformanceKey();

// Process-wide, by name, because a node in another process makes its own.
bool RegisterConformanceFabric(const std::string& name, FabricFactory factory);
std::unique_ptr<ConformanceFabric> MakeConformanceFabric(const std::string& name);

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_CONFORMANCE_FABRIC_H_
