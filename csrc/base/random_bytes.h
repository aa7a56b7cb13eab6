// Randomness from the kernel: incarnation ids, key salts, secrets.
#ifndef JAX_FABRIC_BASE_RANDOM_BYTES_H_
#define JAX_FABRIC_BASE_RANDOM_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "csrc/base/status.h"

namespace jax_fabric {

// Fills all of `bytes` from getrandom(2), or fails with the kernel's reason.
Status FillRandom(std::span<std::byte> bytes);

// A random number that is never 0: an identity ("incarnation") that no other process or time has.
Result<uint64_t> RandomId();

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_RANDOM_BYTES_H_
