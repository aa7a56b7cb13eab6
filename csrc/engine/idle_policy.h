#ifndef JAX_FABRIC_ENGINE_IDLE_POLICY_H_
#define JAX_FABRIC_ENGINE_IDLE_POLICY_H_

#include <cstdint>

namespace jax_fabric {

// What a worker thread does while nothing happens.
enum class IdleMode : uint8_t {
  kAdaptive,  // spin for spin_us (yield while others want the core), yield now and then until yield_us, then sleep
  kSpin,      // spin for ever: the lowest latency, one core for each worker
  kSleep,     // yield once, then sleep: for many processes on few cores
};

struct IdlePolicy {
  IdleMode mode = IdleMode::kAdaptive;
  // A hand-off to a spinning thread takes about 0.5 us, to a sleeping one about 16 us.
  int64_t spin_us = 50;
  int64_t yield_us = 1000;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_IDLE_POLICY_H_
