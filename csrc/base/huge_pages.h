#ifndef JAX_FABRIC_BASE_HUGE_PAGES_H_
#define JAX_FABRIC_BASE_HUGE_PAGES_H_

#include <cstdint>

namespace jax_fabric {

// Asks the kernel to back large, mostly untouched memory with huge pages. XLA gives results fresh pages in every call,
// and at the sizes of MoE (`jax-fabric bench moe`) the page faults cost more processor time than the copies. A hint:
// nothing depends on it.
void AdviseHugePages(void* address, int64_t bytes);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_HUGE_PAGES_H_
