// Engines without threads over a simulated network on a virtual clock: every interleaving comes from the seed.
#ifndef JAX_FABRIC_ENGINE_TESTING_STEPPED_ENGINE_H_
#define JAX_FABRIC_ENGINE_TESTING_STEPPED_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/domains/simulated/simulated_domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/testing/virtual_clock.h"
#include "csrc/engine/transfer_engine.h"

namespace jax_fabric::testing {

// A NIC that takes no time: what is posted in one step arrives in the next one, or up to `jitter_us` steps later.
inline simulated::SimulatedDomainOptions PromptNic(int64_t jitter_us = 0) {
  simulated::SimulatedDomainOptions options;
  options.nic = {.latency_ns = 0, .jitter_ns = jitter_us * 1000, .handshake_ns = 0};
  options.record_writes = true;
  options.mappable = true;
  return options;
}

struct SteppedRank {
  std::unique_ptr<TransferEngine> engine;
  DomainGroup* group = nullptr;
  std::vector<simulated::SimulatedDomain*> nics;
};

class SteppedFabric {
 public:
  explicit SteppedFabric(uint64_t seed = 1) : network_(seed, clock_) {}
  // Closing steps all engines, so all of them have to be there still.
  ~SteppedFabric() {
    for (auto& rank : ranks_) {
      if (rank->engine) static_cast<void>(rank->engine->Close(In(1'000'000)));
    }
  }

  SteppedRank& Add(const std::string& name, int nics = 1, simulated::SimulatedDomainOptions domain = PromptNic(),
                   GroupOptions group = {}, std::shared_ptr<const FabricKey> key = {}) {
    auto rank = std::make_unique<SteppedRank>();
    EngineOptions options;
    options.key = std::move(key);
    options.threads = false;
    options.clock = &clock_;
    options.pump = [this] { Step(); };
    rank->engine = TransferEngine::Create(options).value();
    group.name = name;
    for (int i = 0; i < nics; ++i) {
      domain.name = name + ":nic" + std::to_string(i);
      auto made = std::make_unique<simulated::SimulatedDomain>(network_, domain);
      rank->nics.push_back(made.get());
      group.domains.push_back(std::move(made));
    }
    rank->group = rank->engine->AddGroup(std::move(group)).value();
    ranks_.push_back(std::move(rank));
    return *ranks_.back();
  }

  // The rank is gone; nobody is told. Its transfers have to be dropped before.
  void Kill(SteppedRank& rank) {
    static_cast<void>(rank.engine->Close(In(100)));
    rank.engine.reset();
    rank.group = nullptr;
    rank.nics.clear();
  }

  // One step of every engine; a microsecond goes by.
  void Step() {
    for (auto& rank : ranks_) {
      if (rank->engine) rank->engine->Step();
    }
    clock_.Advance(1);
  }
  void Step(int count) {
    for (int i = 0; i < count; ++i) Step();
  }

  Deadline In(int64_t microseconds) const { return Deadline::After(clock_, microseconds); }
  VirtualClock& clock() { return clock_; }
  simulated::SimulatedNetwork& network() { return network_; }

 private:
  VirtualClock clock_;
  simulated::SimulatedNetwork network_;
  std::vector<std::unique_ptr<SteppedRank>> ranks_;
};

// A callback that remembers how it was called.
struct Outcome {
  int calls = 0;
  Error error{ErrorCode::kOk, {}};
  WorkerCallback callback() {
    return {[](void* context, const Error* error) {
              auto* self = static_cast<Outcome*>(context);
              ++self->calls;
              if (error != nullptr) self->error = *error;
            },
            this};
  }
  bool ok() const { return calls == 1 && error.code == ErrorCode::kOk; }
};

}  // namespace jax_fabric::testing

#endif  // JAX_FABRIC_ENGINE_TESTING_STEPPED_ENGINE_H_
