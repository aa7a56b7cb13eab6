#ifndef JAX_FABRIC_BASE_HUGE_PAGES_H_
#define JAX_FABRIC_BASE_HUGE_PAGES_H_

#include <cstdint>

namespace jax_fabric {

// Asks the kernel to back large, mostly untouched memory with huge pages. XLA gives results fresh pages in every call,
// and at the sizes of MoE the page faults cost more than the copies: 30,000 faults and 136 of 233 ms of processor time
// in a dispatch + combine of 8 ranks, T 128, H 7168, K 8; a third of that with huge pages. A hint: nothing depends on
// it.
void AdviseHugePages(void* address, int64_t bytes);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_HUGE_PAGES_H_
