// The lines by which the host tells kernels (HostLine) in the memory of the device whose kernels wait for them, where
// the host stores into them: kernels look at memory of their own, and not of the host's over PCIe.
#ifndef JAX_FABRIC_MOE_CUDA_DEVICE_LINES_H_
#define JAX_FABRIC_MOE_CUDA_DEVICE_LINES_H_

#include <cstdint>
#include <string>

#include "csrc/base/status.h"
#include "csrc/moe/cuda/device_memory.h"
#include "csrc/moe/cuda/gdrcopy/gdr_mapping.h"
#include "csrc/moe/host_line.h"

namespace jax_fabric::moe {

class DeviceLines {
 public:
  DeviceLines() = default;
  // A line of zeros for each channel. `gdrcopy_library`: of GdrLibrary::Load. Errors: there is no GDRCopy, the device
  // does not order what is stored into its memory before what its kernels read, or it has no room.
  static Result<DeviceLines> Allocate(int device, int32_t channels, const std::string& gdrcopy_library);

  explicit operator bool() const { return mapping_.host() != nullptr; }
  HostLine::Words* on_device(int32_t channel) const { return Line(memory_.data() + offset_, channel); }
  HostLine::Words* host(int32_t channel) const { return Line(mapping_.host(), channel); }
  // Nobody waits for them.
  void Clear(int32_t channels) const;
  int64_t bytes() const { return memory_.bytes(); }

 private:
  static HostLine::Words* Line(std::byte* base, int32_t channel) {
    return base == nullptr ? nullptr : reinterpret_cast<HostLine::Words*>(base) + channel;
  }

  DeviceMemory memory_;
  int64_t offset_ = 0;  // of its first whole page
  gdrcopy::GdrMapping mapping_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_DEVICE_LINES_H_
