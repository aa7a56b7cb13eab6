#include "csrc/base/huge_pages.h"

#include <sys/mman.h>

namespace jax_fabric {

void AdviseHugePages(void* address, int64_t bytes) {
  constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(address) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(address) + static_cast<uintptr_t>(bytes)) & ~(kHugePageBytes - 1);
  // Only whole huge pages inside of the memory: what lies beside it may belong to others.
  if (bytes <= 0 || end <= begin) return;
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace jax_fabric
