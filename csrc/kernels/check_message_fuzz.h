#ifndef JAX_FABRIC_KERNELS_CHECK_MESSAGE_FUZZ_H_
#define JAX_FABRIC_KERNELS_CHECK_MESSAGE_FUZZ_H_

#include <cstddef>
#include <cstdint>

namespace jax_fabric::kernels::testing {

// Takes `data` apart into a shape, valid messages of all sources and changes to their bytes. If CheckMessage accepts
// them all, the receive kernel runs on them, with buffers of just the right size and a route of arbitrary numbers: a
// sanitizer sees what is not safe. Returns whether they were accepted.
bool FuzzCheckMessage(const uint8_t* data, size_t size);

}  // namespace jax_fabric::kernels::testing

#endif  // JAX_FABRIC_KERNELS_CHECK_MESSAGE_FUZZ_H_
