#ifndef JAX_FABRIC_ENGINE_ENGINE_OPTIONS_H_
#define JAX_FABRIC_ENGINE_ENGINE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "csrc/base/clock.h"
#include "csrc/base/config.h"
#include "csrc/base/executor.h"
#include "csrc/base/fabric_key.h"
#include "csrc/engine/idle_policy.h"

namespace jax_fabric {

struct EngineOptions {
  // False: no threads at all. The caller steps (TransferEngine::Step), callbacks of users run inside that step.
  bool threads = true;
  // Outlives the engine.
  const Clock* clock = &SteadyClock::Get();
  IdlePolicy idle = {};
  // Groups are spread over the workers. 0: as many as there are groups, at most half of the cores, at least 1.
  uint32_t workers = 0;
  // Of the fabric. With it, peers and messages are authenticated; without, anybody who reaches the engine is believed.
  std::shared_ptr<const FabricKey> key = {};
  // Where users' callbacks run; outlives the engine. Null: a thread of the engine's, or inline without threads.
  Executor* callback_executor = nullptr;
  // Without threads: called over and over by functions that wait (WaitPeers, Transfer::Wait, Close). Has to step every
  // engine concerned and to let the clock's time go on. Empty: steps this engine.
  std::function<void()> pump = {};
};

// The defaults above, changed by what the environment says (csrc/base/config.h).
EngineOptions EngineOptionsFrom(const Config& config);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_ENGINE_OPTIONS_H_
