#include "csrc/ffi/environment.h"

#include "csrc/base/config.h"
#include "csrc/base/log.h"

namespace jax_fabric::ffi_layer {

Result<EngineOptions> EngineOptionsFromEnvironment() {
  JF_ASSIGN_OR_RETURN(const Config config, LoadConfig());
  SetLogLevel(config.log);
  return EngineOptionsFrom(config);
}

}  // namespace jax_fabric::ffi_layer
