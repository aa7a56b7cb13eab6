#include "csrc/ffi/interface_address.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

namespace jax_fabric::ffi_layer {
namespace {

std::string Words(const ifaddrs& entry) {
  const size_t size = entry.ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  const int error =
      getnameinfo(entry.ifa_addr, static_cast<socklen_t>(size), text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "";
}

}  // namespace

Result<std::string> InterfaceAddress(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return MakeError(ErrorCode::kUnavailable, "network interfaces cannot be listed: {}", std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::string found;
  std::set<std::string> names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    names.insert(entry->ifa_name);
    if (interface != entry->ifa_name || (family == AF_INET6 && !found.empty())) continue;
    found = Words(*entry);
    if (family == AF_INET) break;
  }
  if (!found.empty()) return found;
  return MakeError(ErrorCode::kNotFound, "no NIC '{}' with an address. Found: {}", interface, fmt::join(names, ", "));
}

}  // namespace jax_fabric::ffi_layer
