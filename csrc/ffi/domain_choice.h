// Which transport a group has: what the program says, else what the environment says, else the machine's own memory.
#ifndef JAX_FABRIC_FFI_DOMAIN_CHOICE_H_
#define JAX_FABRIC_FFI_DOMAIN_CHOICE_H_

#include <memory>
#include <optional>
#include <string>

#include "csrc/base/config.h"
#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::ffi_layer {

struct DomainChoice {
  DomainKind kind = DomainKind::kLocal;
  // Of kEfa.
  std::string provider = {};        // libfabric's name of it
  std::string source_address = {};  // where it listens; empty: its own choice
  // Of kConnectX; empty: the domain's own choice.
  std::string device = {};
  std::string library = {};

  // `domain`: "local", "efa", "connectx" or nothing; `provider`: of efa, "tcp" for "tcp;ofi_rxm". What is not given is
  // the configuration's.
  static Result<DomainChoice> Make(const std::optional<std::string>& domain, const std::optional<std::string>& provider,
                                   const Config& config);
};

// Nothing falls back: a transport that is not there is an error that says what was found.
Result<std::unique_ptr<Domain>> CreateDomain(const DomainChoice& choice, const std::string& name,
                                             std::shared_ptr<const FabricKey> key);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_DOMAIN_CHOICE_H_
