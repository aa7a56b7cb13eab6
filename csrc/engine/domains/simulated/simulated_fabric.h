// The simulated domain as a fabric of the conformance suites, in several tempers.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_FABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_FABRIC_H_

#include <algorithm>
#include <memory>
#include <utility>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/domains/local/shared_memory.h"
#include "csrc/engine/domains/simulated/simulated_domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/testing/virtual_clock.h"

namespace jax_fabric::conformance {

class SimulatedFabric final : public ConformanceFabric {
 public:
  explicit SimulatedFabric(simulated::SimulatedDomainOptions options)
      : options_(std::move(options)), network_(7, clock_) {}

  Result<std::unique_ptr<Domain>> CreateDomain(const DomainShape& shape) override {
    simulated::SimulatedDomainOptions options = options_;
    if (shape.max_outstanding > 0) options.limits.max_outstanding = shape.max_outstanding;
    if (shape.max_receives > 0) options.limits.max_receives = shape.max_receives;
    return std::make_unique<simulated::SimulatedDomain>(network_, options);
  }

  Result<FabricMemory> Allocate(uint64_t length) override {
    JF_ASSIGN_OR_RETURN(SharedMemory memory, AllocateShared(length));
    auto owner = std::make_shared<SharedMemory>(std::move(memory));
    return FabricMemory{owner->data(), owner};
  }

  void Step() override {
    // At most to the next event: whoever looks between two of them sees the state in between.
    const int64_t until = network_.NextEventNs().value_or(clock_.NowNs() + 100'000);
    clock_.AdvanceNs(std::max<int64_t>(1, until - clock_.NowNs()));
  }
  const Clock& clock() const override { return clock_; }

 private:
  const simulated::SimulatedDomainOptions options_;
  jax_fabric::testing::VirtualClock clock_;
  simulated::SimulatedNetwork network_;
};

// Ordered and quick.
inline simulated::SimulatedDomainOptions Calm() { return {}; }

// Everything in any order, in pieces, late.
inline simulated::SimulatedDomainOptions Unordered() {
  simulated::SimulatedDomainOptions options;
  options.limits.max_outstanding = 256;
  options.nic.jitter_ns = 50'000;
  options.nic.segment_bytes = 4096;
  options.nic.completion_ns = 30'000;
  options.nic.bytes_per_ns = 25;
  options.nic.post_ns = 100;
  return options;
}

// And lossy, full at times, with successes that come before the payload.
inline simulated::SimulatedDomainOptions Lossy() {
  simulated::SimulatedDomainOptions options = Unordered();
  options.mappable = true;
  options.nic.segment_bytes = 64 << 10;
  options.faults.loss_probability = 0.1;
  options.faults.again_probability = 0.2;
  options.faults.again_burst = 5;
  options.faults.early_completion_probability = 0.5;
  options.faults.handshake_loss_probability = 0.3;
  return options;
}

inline bool RegisterSimulatedFabrics() {
  const auto add = [](const char* name, simulated::SimulatedDomainOptions (*options)()) {
    return RegisterConformanceFabric(name, [options] { return std::make_unique<SimulatedFabric>(options()); });
  };
  return add("simulated_calm", Calm) && add("simulated_unordered", Unordered) && add("simulated_lossy", Lossy);
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_FABRIC_H_
