// In place of the domain where the build was told to do without libibverbs (JAX_FABRIC_RDMA=0).
#include "csrc/engine/domains/connectx/connectx_domain.h"

namespace jax_fabric {

Result<std::unique_ptr<Domain>> CreateConnectXDomain(const ConnectXDomainOptions& options) {
  return MakeError(ErrorCode::kUnimplemented,
                   "device '{}': this jax_fabric was built with JAX_FABRIC_RDMA=0; build it again without",
                   options.device.empty() ? "any" : options.device);
}

}  // namespace jax_fabric
