// The one place that reads environment variables. All are called JAX_FABRIC_*; a name that is not known or a value
// that cannot be understood is an error that lists what is accepted, never ignored.
#ifndef JAX_FABRIC_BASE_CONFIG_H_
#define JAX_FABRIC_BASE_CONFIG_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/base/status.h"

namespace jax_fabric {

// Of seeds: [first, end).
struct SeedRange {
  uint64_t first = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - first; }
};

// Which NICs groups have.
struct NicSelection {
  // Names of 1 to 4 NICs: for each local device in order, or one entry for all. Empty: nothing was said.
  std::vector<std::vector<std::string>> groups;
  // NICs that must not be used; the others are chosen by distance (docs/topology.md).
  std::vector<std::string> exclude;
};

struct Config {
  enum class Idle : uint8_t { kAdaptive, kSpin, kSleep };

  int64_t spin_us = -1;               // JAX_FABRIC_SPIN_US: how long an idle worker spins; -1: chosen by the engine
  int64_t yield_us = 1000;            // JAX_FABRIC_YIELD_US: how long after the last event it yields before it sleeps
  Idle idle = Idle::kAdaptive;        // JAX_FABRIC_IDLE
  uint32_t workers = 0;               // JAX_FABRIC_WORKERS: threads; 0: chosen by the engine
  LogLevel log = LogLevel::kWarning;  // JAX_FABRIC_LOG
  std::string secret_file;            // JAX_FABRIC_SECRET_FILE: of Secret::FromFile; empty: none
  std::string domain = "local";       // JAX_FABRIC_DOMAIN: of groups for which the program names none
  std::string efa_provider = "efa";   // JAX_FABRIC_EFA_PROVIDER: of libfabric
  std::string efa_address;            // JAX_FABRIC_EFA_ADDRESS: where such a provider listens; empty: its own choice
  NicSelection nics;                  // JAX_FABRIC_NICS
  std::string connectx_library;       // JAX_FABRIC_CONNECTX_LIBRARY: libibverbs; empty: the system's
  std::string gdrcopy_library;        // JAX_FABRIC_GDRCOPY_LIBRARY: libgdrapi; empty: the system's

  // --- of tests
  bool soak = false;  // JAX_FABRIC_SOAK: their long versions
  SeedRange seeds;    // JAX_FABRIC_SEEDS: where a test draws programs by seed, from which ones; empty: its own choice
};

// `environment`: "NAME=value" entries; others than JAX_FABRIC_* are skipped, and so are those that steer the build
// (docs/building.md): one that is still set is no mistake.
Result<Config> ParseConfig(std::span<const std::string> environment);

// Of this process.
Result<Config> LoadConfig();

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_CONFIG_H_
