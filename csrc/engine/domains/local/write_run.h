// Long writes that a user cut into pieces.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_WRITE_RUN_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_WRITE_RUN_H_

#include <cstdint>

namespace jax_fabric::local {

// Writes to one peer, each of which begins where the one before it ended: for the cache they are one long write.
class WriteRun {
 public:
  // The next write. Returns the bytes of the run so far, it included.
  uint64_t Extend(uint64_t remote_address, uint64_t length) {
    bytes_ = (remote_address == end_ ? bytes_ : 0) + length;
    end_ = remote_address + length;
    return bytes_;
  }

 private:
  uint64_t end_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_WRITE_RUN_H_
