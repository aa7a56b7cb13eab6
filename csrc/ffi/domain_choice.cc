#include "csrc/ffi/domain_choice.h"

#include <utility>

#include "csrc/base/log.h"
#include "csrc/engine/domains/connectx/connectx_domain.h"
#include "csrc/engine/domains/efa/efa_domain.h"
#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/memory.h"
#include "csrc/ffi/interface_address.h"

namespace jax_fabric::ffi_layer {
namespace {

constexpr const char* kTcp = "tcp;ofi_rxm";  // libfabric's TCP with the reliable datagrams that it lacks by itself
constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kOfReliableDatagrams = "-rdm";  // what the EFA provider adds to the name of a NIC

Result<DomainKind> KindOf(const std::string& domain) {
  if (domain == "local") return DomainKind::kLocal;
  if (domain == "efa") return DomainKind::kEfa;
  if (domain == "connectx") return DomainKind::kConnectX;
  return MakeError(ErrorCode::kInvalidArgument, "domain='{}': must be 'local', 'efa' or 'connectx'", domain);
}

Status CheckNics(const DomainChoice& choice, const std::vector<std::string>& nics) {
  const std::string given = fmt::format("['{}']", fmt::join(nics, "', '"));
  if (!nics.empty() && choice.kind == DomainKind::kLocal) {
    return MakeError(ErrorCode::kInvalidArgument, "nics={}: domain='local' has none; give domain='efa' or 'connectx'",
                     given);
  }
  if (nics.size() > kMaxNics) {
    return MakeError(ErrorCode::kInvalidArgument, "nics={}: a group has 1 to {}", given, kMaxNics);
  }
  return {};
}

Result<std::unique_ptr<Domain>> CreateEfa(const DomainChoice& choice, const std::string& nic,
                                          std::shared_ptr<const FabricKey> key) {
  EfaDomainOptions options;
  options.provider = choice.provider;
  options.source_address = choice.source_address;
  options.key = std::move(key);
  options.device_memory = choice.device_memory;
  if (!nic.empty() && choice.provider == kTcp) {
    // libfabric 1.17 takes any interface, whatever name it is given; it keeps to an address.
    JF_ASSIGN_OR_RETURN(options.source_address, InterfaceAddress(nic));
  } else {
    options.nic = nic;
    const bool is_efa = choice.provider.starts_with("efa");
    if (is_efa && !nic.empty() && !nic.ends_with(kOfReliableDatagrams)) options.nic += kOfReliableDatagrams;
  }
  return CreateEfaDomain(options);
}

Result<std::unique_ptr<Domain>> CreateConnectX(const DomainChoice& choice, const std::string& nic,
                                               std::shared_ptr<const FabricKey> key) {
  ConnectXDomainOptions options;
  options.device = nic;
  options.library = choice.library;
  options.key = std::move(key);
  return CreateConnectXDomain(options);
}

Result<std::unique_ptr<Domain>> CreateLocal(const std::string& name, std::shared_ptr<const FabricKey> key) {
  LocalDomainOptions options;
  options.name = name;
  options.key = std::move(key);
  options.log = [](const std::string& line) { Log(LogLevel::kInfo, "{}", line); };
  return CreateLocalDomain(options);
}

Result<std::unique_ptr<Domain>> CreateOne(const DomainChoice& choice, const std::string& nic, const std::string& name,
                                          std::shared_ptr<const FabricKey> key) {
  switch (choice.kind) {
    case DomainKind::kEfa:
      return CreateEfa(choice, nic, std::move(key));
    case DomainKind::kConnectX:
      return CreateConnectX(choice, nic, std::move(key));
    default:
      return CreateLocal(name, std::move(key));
  }
}

}  // namespace

const char* DomainChoice::domain_name() const {
  return kind == DomainKind::kEfa ? "efa" : kind == DomainKind::kConnectX ? "connectx" : "local";
}

Result<DomainChoice> DomainChoice::Make(const std::optional<std::string>& domain,
                                        const std::optional<std::string>& provider,
                                        const std::vector<std::string>& nics, const Config& config) {
  DomainChoice choice;
  JF_ASSIGN_OR_RETURN(choice.kind, KindOf(domain.value_or(config.domain)));
  JF_RETURN_IF_ERROR(CheckNics(choice, nics));
  choice.nics = nics;
  if (nics.empty() && choice.kind != DomainKind::kLocal && config.nics.groups.size() == 1) {
    choice.nics = config.nics.groups[0];
  }
  if (choice.kind != DomainKind::kEfa) {
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
  if (choice.source_address.empty() && choice.nics.empty() && choice.provider == kTcp) {
    choice.source_address = kLoopback;
  }
  return choice;
}

Result<std::vector<std::unique_ptr<Domain>>> CreateDomains(const DomainChoice& choice, const std::string& name,
                                                           std::shared_ptr<const FabricKey> key) {
  std::vector<std::unique_ptr<Domain>> domains;
  const std::vector<std::string> any = {""};
  for (const std::string& nic : choice.nics.empty() ? any : choice.nics) {
    JF_ASSIGN_OR_RETURN(std::unique_ptr<Domain> domain, CreateOne(choice, nic, name, key));
    if (choice.kind != DomainKind::kLocal) {
      Log(LogLevel::kInfo, "{}: {} over {}", name, domain->name(),
          choice.kind == DomainKind::kEfa ? fmt::format("libfabric's provider '{}'", choice.provider) : "libibverbs");
    }
    domains.push_back(std::move(domain));
  }
  return domains;
}

}  // namespace jax_fabric::ffi_layer
