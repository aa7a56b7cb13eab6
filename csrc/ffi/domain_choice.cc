#include "csrc/ffi/domain_choice.h"

#include <utility>

#include "csrc/base/log.h"
#include "csrc/engine/domains/connectx/connectx_domain.h"
#include "csrc/engine/domains/efa/efa_domain.h"
#include "csrc/engine/domains/local/local_domain.h"

namespace jax_fabric::ffi_layer {
namespace {

constexpr const char* kTcp = "tcp;ofi_rxm";  // libfabric's TCP with the reliable datagrams that it lacks by itself
constexpr const char* kLoopback = "127.0.0.1";

Result<DomainKind> KindOf(const std::string& domain) {
  if (domain == "local") return DomainKind::kLocal;
  if (domain == "efa") return DomainKind::kEfa;
  if (domain == "connectx") return DomainKind::kConnectX;
  return MakeError(ErrorCode::kInvalidArgument, "domain='{}': must be 'local', 'efa' or 'connectx'", domain);
}

}  // namespace

Result<DomainChoice> DomainChoice::Make(const std::optional<std::string>& domain,
                                        const std::optional<std::string>& provider, const Config& config) {
  DomainChoice choice;
  JF_ASSIGN_OR_RETURN(choice.kind, KindOf(domain.value_or(config.domain)));
  if (choice.kind != DomainKind::kEfa) {
    choice.device = config.connectx_device;
    choice.library = config.connectx_library;
    if (!provider.has_value()) return choice;
    return MakeError(ErrorCode::kInvalidArgument, "provider='{}': only domain='efa' has providers", *provider);
  }
  choice.provider = provider.value_or(config.efa_provider);
  if (choice.provider.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "provider='': give 'efa', or 'tcp' for development");
  }
  if (choice.provider == "tcp") choice.provider = kTcp;
  choice.source_address = config.efa_address;
  // Software that listens does so on this machine alone, unless somebody says otherwise.
  if (choice.source_address.empty() && choice.provider == kTcp) choice.source_address = kLoopback;
  return choice;
}

Result<std::unique_ptr<Domain>> CreateDomain(const DomainChoice& choice, const std::string& name,
                                             std::shared_ptr<const FabricKey> key) {
  if (choice.kind == DomainKind::kEfa) {
    EfaDomainOptions options;
    options.provider = choice.provider;
    options.source_address = choice.source_address;
    options.key = std::move(key);
    JF_ASSIGN_OR_RETURN(std::unique_ptr<Domain> domain, CreateEfaDomain(options));
    Log(LogLevel::kInfo, "{}: {} over libfabric's provider '{}'", name, domain->name(), choice.provider);
    return domain;
  }
  if (choice.kind == DomainKind::kConnectX) {
    ConnectXDomainOptions options;
    options.device = choice.device;
    options.library = choice.library;
    options.key = std::move(key);
    JF_ASSIGN_OR_RETURN(std::unique_ptr<Domain> domain, CreateConnectXDomain(options));
    Log(LogLevel::kInfo, "{}: {} over libibverbs", name, domain->name());
    return domain;
  }
  LocalDomainOptions options;
  options.name = name;
  options.key = std::move(key);
  options.log = [](const std::string& line) { Log(LogLevel::kInfo, "{}", line); };
  return CreateLocalDomain(options);
}

}  // namespace jax_fabric::ffi_layer
