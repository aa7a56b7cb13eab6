// Memory of a GPU into which the host stores.
#ifndef JAX_FABRIC_MOE_CUDA_GDRCOPY_GDR_MAPPING_H_
#define JAX_FABRIC_MOE_CUDA_GDRCOPY_GDR_MAPPING_H_

#include <cstddef>
#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/moe/cuda/gdrcopy/gdr_library.h"

namespace jax_fabric::gdrcopy {

class GdrMapping {
 public:
  // A GPU maps whole pages.
  static constexpr int64_t kPageBytes = 64 << 10;

  GdrMapping() = default;
  // `memory` and `bytes`: multiples of kPageBytes, in one allocation, which outlives this.
  static Result<GdrMapping> Map(const GdrLibrary& library, std::byte* memory, int64_t bytes);
  GdrMapping(GdrMapping&& other) noexcept;
  GdrMapping& operator=(GdrMapping&& other) noexcept;
  ~GdrMapping();

  // For stores only: each load goes over PCIe. Stores are combined on their way, and are not ordered with others
  // without a fence of the processor (csrc/moe/host_line.h).
  std::byte* host() const { return host_; }

 private:
  const GdrLibrary* library_ = nullptr;
  Handle handle_;
  std::byte* host_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace jax_fabric::gdrcopy

#endif  // JAX_FABRIC_MOE_CUDA_GDRCOPY_GDR_MAPPING_H_
