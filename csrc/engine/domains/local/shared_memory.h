// Host memory that other processes of the machine can map: what to allocate for everything that local peers write to.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_SHARED_MEMORY_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/engine/domains/local/memory_mapping.h"

namespace jax_fabric {

namespace local {

struct SharedMemoryFile {
  UniqueFd fd;
  MemoryMapping mapping;
  uint64_t id = 0;  // random: the name by which peers remember that they have mapped it
};

// The shared memory of this process that contains the whole range, or null.
std::shared_ptr<const SharedMemoryFile> FindSharedMemory(const void* address, uint64_t length);

}  // namespace local

// Page-aligned, zero-filled, taken from the machine page by page when touched. Registered regions inside keep the
// memory mapped until they are deregistered, also when the SharedMemory is gone before.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept = default;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return file_ ? file_->mapping.data() : nullptr; }
  // As asked for; the mapping itself is rounded up to pages.
  uint64_t size() const { return size_; }

 private:
  friend Result<SharedMemory> AllocateShared(uint64_t length);
  SharedMemory(std::shared_ptr<const local::SharedMemoryFile> file, uint64_t size)
      : file_(std::move(file)), size_(size) {}
  void Forget();

  std::shared_ptr<const local::SharedMemoryFile> file_;
  uint64_t size_ = 0;
};

// Thread-safe. Length 0 gives one page.
Result<SharedMemory> AllocateShared(uint64_t length);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_SHARED_MEMORY_H_
