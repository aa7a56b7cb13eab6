// Which process on which machine: a pid alone is reused by the kernel.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PROCESS_IDENTITY_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PROCESS_IDENTITY_H_

#include <cstdint>

#include "csrc/base/status.h"

namespace jax_fabric::local {

struct ProcessIdentity {
  uint32_t pid = 0;
  uint64_t start_time = 0;  // clock ticks since boot
  // Hash of the boot id and of the pid and network namespaces: processes with different values cannot meet over pids
  // and abstract sockets, whatever their numbers say.
  uint64_t machine = 0;

  static Result<ProcessIdentity> Self();
  bool operator==(const ProcessIdentity&) const = default;
};

// Whether the process with that pid still runs and is the one that started then. A zombie does not run.
bool ProcessIsAlive(uint32_t pid, uint64_t start_time);

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PROCESS_IDENTITY_H_
