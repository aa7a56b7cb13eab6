#include "csrc/ffi/environment.h"

#include "csrc/base/config.h"
#include "csrc/base/log.h"

namespace jax_fabric::ffi_layer {

Result<EngineOptions> EngineOptionsFromEnvironment() {
  JF_ASSIGN_OR_RETURN(const Config config, LoadConfig());
  SetLogLevel(config.log);
  return EngineOptionsFrom(config);
}

Result<std::optional<Secret>> SecretFromEnvironment() {
  JF_ASSIGN_OR_RETURN(const Config config, LoadConfig());
  if (config.secret_file.empty()) return std::nullopt;
  JF_ASSIGN_OR_RETURN(Secret secret, Secret::FromFile(config.secret_file));
  return secret;
}

}  // namespace jax_fabric::ffi_layer
