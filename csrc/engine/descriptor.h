// Descriptors: memory that peers may write, as bytes.
#ifndef JAX_FABRIC_ENGINE_DESCRIPTOR_H_
#define JAX_FABRIC_ENGINE_DESCRIPTOR_H_

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/memory.h"

namespace jax_fabric {

Bytes SerializeDescriptor(const RemoteMemory& memory);

// Trusts nothing; fields that newer versions append are ignored.
Result<RemoteMemory> ParseDescriptor(ByteView bytes);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DESCRIPTOR_H_
