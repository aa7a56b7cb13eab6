#ifndef JAX_FABRIC_ENGINE_TESTING_VIRTUAL_CLOCK_H_
#define JAX_FABRIC_ENGINE_TESTING_VIRTUAL_CLOCK_H_

#include "csrc/base/clock.h"

namespace jax_fabric::testing {

// Stands still until told otherwise. One thread.
class VirtualClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void Advance(int64_t microseconds) { AdvanceNs(microseconds * 1000); }
  void AdvanceNs(int64_t nanoseconds) { now_ns_ += nanoseconds; }

 private:
  int64_t now_ns_ = 1'000'000;
};

}  // namespace jax_fabric::testing

#endif  // JAX_FABRIC_ENGINE_TESTING_VIRTUAL_CLOCK_H_
