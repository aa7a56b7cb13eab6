// MemoryRegistrar: how a library of NICs registers memory. MemoryTable keeps what it made.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_NIC_MEMORY_REGISTRAR_H_
#define JAX_FABRIC_ENGINE_DOMAINS_NIC_MEMORY_REGISTRAR_H_

#include <cstdint>
#include <memory>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::nic {

struct Registration {
  std::shared_ptr<void> handle;  // its end is the registration's
  uint64_t provider_key = 0;     // what the wire carries; of 32 bits
  void* descriptor = nullptr;    // what posts of libfabric name it by
  uint32_t local_key = 0;        // what posts of libibverbs name it by
};

class MemoryRegistrar {
 public:
  virtual ~MemoryRegistrar() = default;
  // One caller at a time.
  virtual Result<Registration> Map(void* address, uint64_t length, MemoryKind kind, Access access) = 0;
  // Whether remote addresses are the target's pointers, or offsets into the region.
  virtual bool virtual_addresses() const = 0;
};

}  // namespace jax_fabric::nic

#endif  // JAX_FABRIC_ENGINE_DOMAINS_NIC_MEMORY_REGISTRAR_H_
