// In place of the domain where the build was told to do without libfabric (JAX_FABRIC_RDMA=0).
#include "csrc/engine/domains/efa/efa_domain.h"

namespace jax_fabric {

Result<std::unique_ptr<Domain>> CreateEfaDomain(const EfaDomainOptions& options) {
  return MakeError(ErrorCode::kUnimplemented,
                   "provider '{}': this jax_fabric was built with JAX_FABRIC_RDMA=0; build it again without",
                   options.provider);
}

}  // namespace jax_fabric
