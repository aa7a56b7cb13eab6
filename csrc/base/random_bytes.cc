#include "csrc/base/random_bytes.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace jax_fabric {

Status FillRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0) {
      if (errno == EINTR) continue;
      return MakeError(ErrorCode::kInternal, "getrandom of {} bytes failed: {}", bytes.size(), strerror(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

Result<uint64_t> RandomId() {
  uint64_t id = 0;
  while (id == 0) JF_RETURN_IF_ERROR(FillRandom(std::as_writable_bytes(std::span(&id, 1))));
  return id;
}

}  // namespace jax_fabric
