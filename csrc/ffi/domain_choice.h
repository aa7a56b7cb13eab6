// Which transport a group has: what the program says, else what the environment says, else the machine's own memory.
#ifndef JAX_FABRIC_FFI_DOMAIN_CHOICE_H_
#define JAX_FABRIC_FFI_DOMAIN_CHOICE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  // Of kConnectX: of libibverbs; empty: the system's.
  std::string library = {};
  // Of kEfa and kConnectX: names of 1 to 4 NICs; empty: one, of the domain's own choice.
  std::vector<std::string> nics = {};
  // NICs read and write memory of GPUs.
  bool device_memory = false;

  // `domain`: "local", "efa", "connectx" or nothing; `provider`: of efa, "tcp" for "tcp;ofi_rxm". What is not given is
  // the configuration's; so are NICs, if it names the same for all devices.
  static Result<DomainChoice> Make(const std::optional<std::string>& domain, const std::optional<std::string>& provider,
                                   const std::vector<std::string>& nics, const Config& config);
  // "local", "efa" or "connectx".
  const char* domain_name() const;
};

// One for each NIC, for GroupOptions. Nothing falls back: a transport that is not there is an error that says what was
// found.
Result<std::vector<std::unique_ptr<Domain>>> CreateDomains(const DomainChoice& choice, const std::string& name,
                                                           std::shared_ptr<const FabricKey> key);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_DOMAIN_CHOICE_H_
