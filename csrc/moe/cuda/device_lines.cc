#include "csrc/moe/cuda/device_lines.h"

#include "csrc/kernels/moe_layout.h"
#include "csrc/moe/cuda/cuda_status.h"
#include "csrc/moe/cuda/write_ordering.h"

namespace jax_fabric::moe {

using gdrcopy::GdrMapping;

Result<DeviceLines> DeviceLines::Allocate(int device, int32_t channels, const std::string& gdrcopy_library) {
  JF_ASSIGN_OR_RETURN(const gdrcopy::GdrLibrary* library, gdrcopy::GdrLibrary::Load(gdrcopy_library));
  JF_RETURN_IF_ERROR(CheckDirectAccess(device));
  const int64_t bytes =
      kernels::AlignUp(channels * static_cast<int64_t>(sizeof(HostLine::Words)), GdrMapping::kPageBytes);
  DeviceLines lines;
  // cudaMalloc does not promise memory that begins with a page.
  JF_ASSIGN_OR_RETURN(lines.memory_, DeviceMemory::Allocate(device, bytes + GdrMapping::kPageBytes));
  const auto address = reinterpret_cast<int64_t>(lines.memory_.data());
  lines.offset_ = kernels::AlignUp(address, GdrMapping::kPageBytes) - address;
  JF_ASSIGN_OR_RETURN(lines.mapping_, GdrMapping::Map(*library, lines.memory_.data() + lines.offset_, bytes));
  return lines;
}

void DeviceLines::Clear(int32_t channels) const {
  for (int32_t channel = 0; channel < channels; ++channel) HostLine(host(channel), /*on_device=*/true).Clear();
}

}  // namespace jax_fabric::moe
