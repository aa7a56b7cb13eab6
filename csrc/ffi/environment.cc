#include "csrc/ffi/environment.h"

#include <utility>

#include "csrc/base/config.h"
#include "csrc/base/log.h"

namespace jax_fabric::ffi_layer {

Result<EngineOptions> EngineOptionsFromEnvironment() {
  JF_ASSIGN_OR_RETURN(const Config config, LoadConfig());
  SetLogLevel(config.log);
  return EngineOptionsFrom(config);
}

Result<DomainChoice> DomainChoiceFromEnvironment(const std::optional<std::string>& domain,
                                                 const std::optional<std::string>& provider,
                                                 const std::vector<std::string>& nics) {
  JF_ASSIGN_OR_RETURN(const Config config, LoadConfig());
  return DomainChoice::Make(domain, provider, nics, config);
}

Result<NicSelection> NicSelectionFromEnvironment() {
  JF_ASSIGN_OR_RETURN(Config config, LoadConfig());
  return std::move(config.nics);
}

Result<std::string> GdrcopyLibraryFromEnvironment() {
  JF_ASSIGN_OR_RETURN(Config config, LoadConfig());
  return std::move(config.gdrcopy_library);
}

Result<std::optional<Secret>> SecretFromEnvironment() {
  JF_ASSIGN_OR_RETURN(const Config config, LoadConfig());
  if (config.secret_file.empty()) return std::nullopt;
  JF_ASSIGN_OR_RETURN(Secret secret, Secret::FromFile(config.secret_file));
  return secret;
}

}  // namespace jax_fabric::ffi_layer
