// VerbsDevice: one port of one NIC, opened: what it can do, and the address (GID) that it is reached by.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_DEVICE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/status.h"
#include "csrc/engine/domains/connectx/connectx_address.h"
#include "csrc/engine/domains/connectx/connectx_domain.h"
#include "csrc/engine/domains/connectx/verbs.h"

namespace jax_fabric::connectx {

using Gid = std::array<uint8_t, 16>;

// An object of libibverbs and the function that ends it.
template <typename Object>
using Owned = std::unique_ptr<Object, int (*)(Object*)>;

class VerbsDevice {
 public:
  static Result<std::unique_ptr<VerbsDevice>> Open(const ConnectXDomainOptions& options);

  const Verbs& verbs() const { return *verbs_; }
  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_.get(); }
  ibv_pd* pd() const { return pd_.get(); }
  const ibv_device_attr& limits() const { return limits_; }
  const ibv_port_attr& port_limits() const { return port_limits_; }
  const PortAddress& address() const { return address_; }
  uint8_t port() const { return port_; }

  // "port 1 is PORT_ACTIVE", as it is now.
  std::string PortWords() const;
  // The way to a peer; both sides have to be of one link layer.
  Status FillRoute(const PortAddress& peer, ibv_ah_attr& route) const;

 private:
  VerbsDevice(const Verbs* verbs, const ConnectXDomainOptions& options);
  Status Choose(const ConnectXDomainOptions& options);
  // Why this one is not it; ok: it is, and open.
  Status Try(ibv_device* device, const ConnectXDomainOptions& options);
  Status ChooseGid(int wanted);

  const Verbs* verbs_;
  const uint8_t service_level_;
  const uint8_t traffic_class_;
  std::string name_;
  Owned<ibv_context> context_;
  Owned<ibv_pd> pd_;
  ibv_device_attr limits_{};
  ibv_port_attr port_limits_{};
  PortAddress address_;
  uint8_t port_ = 0;
  uint8_t gid_index_ = 0;
};

// How good a GID of RoCE is: 0 unusable (not of version 2, or zero), 1 of this link alone, 2 global. Pure.
int RankGid(const Gid& gid, uint32_t type);

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_DEVICE_H_
