#ifndef JAX_FABRIC_BASE_CACHE_SIZE_H_
#define JAX_FABRIC_BASE_CACHE_SIZE_H_

#include <cstdint>

namespace jax_fabric {

// Of the last-level cache of one socket; 32 MiB where the system does not know.
int64_t LastLevelCacheBytes();

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_CACHE_SIZE_H_
