#include "csrc/engine/domains/local/memory_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace jax_fabric::local {

Result<UniqueFd> CreateMemoryFile(const std::string& name, uint64_t length) {
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return MakeError(ErrorCode::kResourceExhausted, "memfd_create of '{}' failed: {}", name, strerror(errno));
  }
  if (length > static_cast<uint64_t>(INT64_MAX) || ftruncate(fd.get(), static_cast<off_t>(length)) != 0) {
    return MakeError(ErrorCode::kResourceExhausted, "cannot make the memory file '{}' {} bytes long: {}", name, length,
                     strerror(errno));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return MakeError(ErrorCode::kInternal, "cannot seal the memory file '{}': {}", name, strerror(errno));
  }
  return fd;
}

MemoryMapping& MemoryMapping::operator=(MemoryMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(length_, other.length_);
  return *this;
}

MemoryMapping::~MemoryMapping() {
  if (data_ != nullptr) munmap(data_, length_);
}

Result<MemoryMapping> MemoryMapping::Map(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat status = {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &status) != 0 || status.st_size <= 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "file descriptor {} is not a sealed memory file (seals {:#x}, {} bytes)", fd, seals,
                     status.st_size);
  }
  const auto length = static_cast<uint64_t>(status.st_size);
  void* data = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) {
    return MakeError(ErrorCode::kResourceExhausted, "mmap of a memory file of {} bytes failed: {}", length,
                     strerror(errno));
  }
  MemoryMapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.length_ = length;
  return mapping;
}

}  // namespace jax_fabric::local
