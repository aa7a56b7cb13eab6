#ifndef JAX_FABRIC_FFI_ENVIRONMENT_H_
#define JAX_FABRIC_FFI_ENVIRONMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/secret.h"
#include "csrc/base/status.h"
#include "csrc/engine/engine_options.h"
#include "csrc/ffi/domain_choice.h"

namespace jax_fabric::ffi_layer {

// What the environment says about engines (docs/configuration.md); sets the log level, too.
Result<EngineOptions> EngineOptionsFromEnvironment();
// The transport of a group: see DomainChoice::Make.
Result<DomainChoice> DomainChoiceFromEnvironment(const std::optional<std::string>& domain,
                                                 const std::optional<std::string>& provider,
                                                 const std::vector<std::string>& nics);
// What is said about NICs, for whoever chooses them (jax_fabric/topology).
Result<NicSelection> NicSelectionFromEnvironment();
// Of GDRCopy, as GpuOptions has it.
Result<std::string> GdrcopyLibraryFromEnvironment();
// From JAX_FABRIC_SECRET_FILE; nothing where that is not set.
Result<std::optional<Secret>> SecretFromEnvironment();

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_ENVIRONMENT_H_
