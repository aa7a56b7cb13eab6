#include "csrc/engine/engine_options.h"

#include <thread>

namespace jax_fabric {
namespace {

// Where cores are few, a worker that spins keeps one from the threads that it waits for. JAX_FABRIC_SPIN_US and
// `jax-fabric bench moe` show by how much.
constexpr unsigned kCoresToSpin = 8;

}  // namespace

EngineOptions EngineOptionsFrom(const Config& config) {
  EngineOptions options;
  if (config.spin_us >= 0) {
    options.idle.spin_us = config.spin_us;
  } else if (std::thread::hardware_concurrency() < kCoresToSpin) {
    options.idle.spin_us = 0;
  }
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
