#include "csrc/engine/engine_options.h"

namespace jax_fabric {

EngineOptions EngineOptionsFrom(const Config& config) {
  EngineOptions options;
  options.idle.spin_us = config.spin_us;
  options.idle.yield_us = config.yield_us;
  switch (config.idle) {
    case Config::Idle::kAdaptive:
      options.idle.mode = IdleMode::kAdaptive;
      break;
    case Config::Idle::kSpin:
      options.idle.mode = IdleMode::kSpin;
      break;
    case Config::Idle::kSleep:
      options.idle.mode = IdleMode::kSleep;
      break;
  }
  options.workers = config.workers;
  return options;
}

}  // namespace jax_fabric
