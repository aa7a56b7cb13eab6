// The one place that reads environment variables. All are called JAX_FABRIC_*; a name that is not known or a value
// that cannot be understood is an error that lists what is accepted, never ignored.
#ifndef JAX_FABRIC_BASE_CONFIG_H_
#define JAX_FABRIC_BASE_CONFIG_H_

#include <cstdint>
#include <span>
#include <string>

#include "csrc/base/log.h"
#include "csrc/base/status.h"

namespace jax_fabric {

struct Config {
  enum class Idle : uint8_t { kAdaptive, kSpin, kSleep };

  int64_t spin_us = -1;               // JAX_FABRIC_SPIN_US: how long an idle worker spins; -1: chosen by the engine
  int64_t yield_us = 1000;            // JAX_FABRIC_YIELD_US: how long after the last event it yields before it sleeps
  Idle idle = Idle::kAdaptive;        // JAX_FABRIC_IDLE
  uint32_t workers = 0;               // JAX_FABRIC_WORKERS: threads; 0: chosen by the engine
  LogLevel log = LogLevel::kWarning;  // JAX_FABRIC_LOG
};

// `environment`: "NAME=value" entries; others than JAX_FABRIC_* are skipped. Names in `others` belong to somebody else
// (the Python side) and are accepted with any value.
Result<Config> ParseConfig(std::span<const std::string> environment, std::span<const std::string> others = {});

// Of this process.
Result<Config> LoadConfig(std::span<const std::string> others = {});

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_CONFIG_H_
