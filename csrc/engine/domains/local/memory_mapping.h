// A mapped memfd, unmapped with its owner.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MEMORY_MAPPING_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MEMORY_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/base/unique_fd.h"

namespace jax_fabric::local {

// A new memory file of `length` bytes (all zero, taken from the machine when touched), sealed so that nobody can
// shrink it under a peer that has mapped it. `name` shows up in /proc/<pid>/maps.
Result<UniqueFd> CreateMemoryFile(const std::string& name, uint64_t length);

class MemoryMapping {
 public:
  MemoryMapping() = default;
  MemoryMapping(MemoryMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), length_(std::exchange(other.length_, 0)) {}
  MemoryMapping& operator=(MemoryMapping&& other) noexcept;
  ~MemoryMapping();

  // Maps all of a memory file for reading and writing. A file that could shrink is refused: it would turn a
  // peer's mistake into a SIGBUS here.
  static Result<MemoryMapping> Map(int fd);

  std::byte* data() const { return data_; }
  uint64_t length() const { return length_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t length_ = 0;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_MEMORY_MAPPING_H_
