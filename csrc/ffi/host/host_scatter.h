#ifndef JAX_FABRIC_FFI_HOST_HOST_SCATTER_H_
#define JAX_FABRIC_FFI_HOST_HOST_SCATTER_H_

#include <memory>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/scatter.h"
#include "csrc/ffi/host/host_region.h"

namespace jax_fabric::ffi_layer {

// Entries of a scatter with all that they refer to.
struct HostScatterEntries {
  std::vector<ScatterEntry> entries;
  std::vector<std::shared_ptr<RemoteMemory>> targets;
  std::vector<std::shared_ptr<HostRegion>> sources;
};

// A prepared scatter as Python holds it; a post in flight shares it.
struct HostScatter {
  HostGroup group;
  HostScatterEntries entries;
  std::unique_ptr<PreparedScatter> scatter;  // goes first
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_HOST_SCATTER_H_
