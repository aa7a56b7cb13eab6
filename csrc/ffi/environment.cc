#include "csrc/ffi/environment.h"

#include <string>

#include "csrc/base/config.h"
#include "csrc/base/log.h"

namespace jax_fabric::ffi_layer {
namespace {

// They steer the build and the tests (docs/building.md); one that is still set is not a mistake.
const std::string kBuildVariables[] = {
    "JAX_FABRIC_BAZEL_ARGS", "JAX_FABRIC_CUDA",           "JAX_FABRIC_INCLUDE_PATH", "JAX_FABRIC_JAXLIB",
    "JAX_FABRIC_NANOBIND",   "JAX_FABRIC_PYTHON_INCLUDE", "JAX_FABRIC_RDMA",         "JAX_FABRIC_SOAK",
};

}  // namespace

Result<EngineOptions> EngineOptionsFromEnvironment() {
  JF_ASSIGN_OR_RETURN(const Config config, LoadConfig(kBuildVariables));
  SetLogLevel(config.log);
  return EngineOptionsFrom(config);
}

}  // namespace jax_fabric::ffi_layer
