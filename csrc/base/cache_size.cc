#include "csrc/base/cache_size.h"

#include <unistd.h>

namespace jax_fabric {

int64_t LastLevelCacheBytes() {
  // Files and CPUID behind it: not for every call.
  static const int64_t bytes = [] {
    int64_t found = -1;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    found = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return found > 0 ? found : int64_t{32} << 20;
  }();
  return bytes;
}

}  // namespace jax_fabric
