#include "csrc/engine/domains/connectx/verbs_device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace jax_fabric::connectx {
namespace {

constexpr uint8_t kHopLimit = 64;

Gid ToGid(const ibv_gid& gid) {
  Gid bytes;
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  return bytes;
}

}  // namespace

int RankGid(const Gid& gid, uint32_t type) {
  if (type != IBV_GID_TYPE_ROCE_V2) return 0;
  if (std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; })) return 0;
  const bool link_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
  return link_local ? 1 : 2;
}

VerbsDevice::VerbsDevice(const Verbs* verbs, const ConnectXDomainOptions& options)
    : verbs_(verbs),
      service_level_(static_cast<uint8_t>(options.service_level)),
      traffic_class_(static_cast<uint8_t>(options.traffic_class)),
      context_(nullptr, verbs->ibv_close_device),
      pd_(nullptr, verbs->ibv_dealloc_pd) {}

Result<std::unique_ptr<VerbsDevice>> VerbsDevice::Open(const ConnectXDomainOptions& options) {
  JF_ASSIGN_OR_RETURN(const Verbs* verbs, Verbs::Load(options.library));
  std::unique_ptr<VerbsDevice> device(new VerbsDevice(verbs, options));
  JF_RETURN_IF_ERROR(device->Choose(options));
  device->pd_.reset(verbs->ibv_alloc_pd(device->context()));
  if (device->pd_ == nullptr) {
    return MakeError(ErrorCode::kUnavailable, "{}: no protection domain: {}", device->name_, ErrnoWords(errno));
  }
  return device;
}

Status VerbsDevice::Choose(const ConnectXDomainOptions& options) {
  int count = 0;
  ibv_device** list = verbs_->ibv_get_device_list(&count);
  std::string found;
  Status chosen = MakeError(ErrorCode::kNotFound, "none");
  for (int i = 0; list != nullptr && i < count && !chosen.has_value(); ++i) {
    const std::string name = verbs_->ibv_get_device_name(list[i]);
    chosen = options.device.empty() || options.device == name ? Try(list[i], options)
                                                              : MakeError(ErrorCode::kNotFound, "not asked for");
    if (!chosen.has_value()) {
      found += fmt::format("{}{}: {}", found.empty() ? "" : "; ", name, chosen.error().message);
    }
  }
  if (list != nullptr) verbs_->ibv_free_device_list(list);
  if (chosen.has_value()) return {};
  return MakeError(
      ErrorCode::kNotFound,
      "no RDMA device '{}' with an active port. Found: {}. Is its driver loaded (ls /sys/class/infiniband), "
      "and its link up (ibv_devinfo)?",
      options.device.empty() ? "any" : options.device, found.empty() ? "nothing" : found);
}

Status VerbsDevice::Try(ibv_device* device, const ConnectXDomainOptions& options) {
  name_ = verbs_->ibv_get_device_name(device);
  context_.reset(verbs_->ibv_open_device(device));
  if (context_ == nullptr) return MakeError(ErrorCode::kUnavailable, "cannot be opened: {}", ErrnoWords(errno));
  if (const int error = verbs_->ibv_query_device(context(), &limits_); error != 0) {
    return MakeError(ErrorCode::kUnavailable, "says nothing about itself: {}", ErrnoWords(error));
  }
  std::string ports;
  for (int port = 1; port <= limits_.phys_port_cnt; ++port) {
    if (options.port != 0 && options.port != port) continue;
    port_ = static_cast<uint8_t>(port);
    if (verbs_->QueryPort(context(), port_, port_limits_) == 0 && port_limits_.state == IBV_PORT_ACTIVE) {
      address_.lid = port_limits_.lid;
      address_.link_layer = port_limits_.link_layer;
      address_.mtu = static_cast<uint8_t>(port_limits_.active_mtu);
      return ChooseGid(options.gid_index);
    }
    ports += (ports.empty() ? "" : ", ") + PortWords();
  }
  return MakeError(ErrorCode::kUnavailable, "{}",
                   ports.empty() ? fmt::format("has {} ports, not {}", limits_.phys_port_cnt, options.port) : ports);
}

std::string VerbsDevice::PortWords() const {
  ibv_port_attr now = {};
  if (verbs_->QueryPort(context(), port_, now) != 0) return fmt::format("port {} does not answer", port_);
  return fmt::format("port {} is {}", port_, verbs_->ibv_port_state_str(now.state));
}

// Routable ones first: a link-local GID does not leave its link, and one of RoCE version 1 not its subnet. On
// InfiniBand every GID is of the port, the first one always there.
Status VerbsDevice::ChooseGid(int wanted) {
  const bool ethernet = address_.link_layer == IBV_LINK_LAYER_ETHERNET;
  int best = 0;
  for (int i = 0; i < port_limits_.gid_tbl_len; ++i) {
    if (wanted >= 0 && i != wanted) continue;
    ibv_gid_entry entry = {};
    if (verbs_->_ibv_query_gid_ex(context(), port_, static_cast<uint32_t>(i), &entry, 0, sizeof(entry)) != 0) continue;
    const Gid gid = ToGid(entry.gid);
    const int rank = ethernet ? RankGid(gid, entry.gid_type) : 2;
    if (rank <= best) continue;
    best = rank;
    address_.gid = gid;
    gid_index_ = static_cast<uint8_t>(i);
    if (!ethernet) break;
  }
  if (best > 0) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "port {} has no GID of RoCE version 2 {}: give its network interface an address (ip addr add), see "
                   "/sys/class/infiniband/{}/ports/{}/gids",
                   port_, wanted >= 0 ? fmt::format("at index {}", wanted) : "at all", name_, port_);
}

Status VerbsDevice::FillRoute(const PortAddress& peer, ibv_ah_attr& route) const {
  if (peer.link_layer != address_.link_layer) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the peer's port is of link layer {} and {}'s of {} (1: InfiniBand, "
                     "2: Ethernet)",
                     peer.link_layer, name_, address_.link_layer);
  }
  route = {};
  route.is_global = 1;
  std::memcpy(route.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  route.grh.sgid_index = gid_index_;
  route.grh.hop_limit = kHopLimit;
  route.grh.traffic_class = traffic_class_;
  route.dlid = peer.lid;
  route.sl = service_level_;
  route.port_num = port_;
  return {};
}

}  // namespace jax_fabric::connectx
