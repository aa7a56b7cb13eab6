// Time is injected, so that protocols run unchanged on the simulated fabric's virtual clock.
#ifndef JAX_FABRIC_BASE_CLOCK_H_
#define JAX_FABRIC_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace jax_fabric {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic nanoseconds; the origin is arbitrary.
  virtual int64_t NowNs() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  static const SteadyClock& Get() {
    static const SteadyClock clock;
    return clock;
  }
};

// An absolute point on a Clock. There is no infinite deadline: every wait ends.
struct Deadline {
  int64_t at_ns = 0;

  static Deadline After(const Clock& clock, int64_t timeout_us) { return Deadline{clock.NowNs() + timeout_us * 1000}; }
  bool Passed(const Clock& clock) const { return clock.NowNs() >= at_ns; }
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_CLOCK_H_
