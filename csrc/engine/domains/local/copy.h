// Payload copies.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_COPY_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_COPY_H_

#include <cstddef>
#include <cstdint>

namespace jax_fabric::local {

// memcpy. With `streaming` the stores go around the cache: for payloads too large to stay in it. They are ordered
// before every store that follows.
void CopyBytes(std::byte* target, const std::byte* source, uint64_t length, bool streaming);

// Many streaming copies: FinishStreams once, before the store that publishes them, which does not order them.
void StreamBytes(std::byte* target, const std::byte* source, uint64_t length);
void FinishStreams();

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_COPY_H_
