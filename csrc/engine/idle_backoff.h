#ifndef JAX_FABRIC_ENGINE_IDLE_BACKOFF_H_
#define JAX_FABRIC_ENGINE_IDLE_BACKOFF_H_

#include <cstdint>

#include "csrc/base/clock.h"
#include "csrc/engine/idle_policy.h"

namespace jax_fabric {

// What a thread does that has found nothing to do: it spins, yields, and then may sleep.
class IdleBackoff {
 public:
  IdleBackoff(const Clock& clock, IdlePolicy policy) : clock_(clock), policy_(policy) {}

  // After a round in which nothing happened, `idle_since_ns` being the moment when something last did. False: it has
  // neither spun nor yielded, since the policy says to sleep. `yield_us`: in place of the policy's.
  bool Wait(int64_t idle_since_ns, int64_t yield_us);
  void Yield();
  // As the last yield showed. Spinning would keep others from the core, among them whoever is to send what is waited
  // for.
  bool core_is_wanted() const { return core_is_wanted_; }
  int64_t yield_us() const { return policy_.yield_us; }

 private:
  const Clock& clock_;
  const IdlePolicy policy_;
  bool core_is_wanted_ = false;
  int64_t next_yield_ns_ = 0;  // spins until then, where policies let it spin at all
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_IDLE_BACKOFF_H_
