// Device: datagrams, and what may happen to them.
#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/engine/domains/connectx/double/device.h"

namespace jax_fabric::verbs_double {
namespace {

constexpr size_t kGlobalRouteBytes = 40;

}  // namespace

int Device::PostDatagram(QueuePair& pair, const ibv_send_wr& request) {
  if (pair.state != IBV_QPS_RTS || request.opcode != IBV_WR_SEND || request.num_sge != 1) return EINVAL;
  const ibv_sge& part = request.sg_list[0];
  if (part.length > uint32_t{128} << model_.mtu) return EINVAL;
  Work work;
  work.id = request.wr_id;
  work.signaled = true;
  auto* route = static_cast<Route*>(request.wr.ud.ah);
  if (FindMemory(part.lkey, part.addr, part.length, 0) == nullptr) {
    CompleteWork(pair, work, IBV_WC_LOC_PROT_ERR, route);
    return 0;
  }
  Packet packet;
  const auto* bytes = reinterpret_cast<const std::byte*>(part.addr);
  packet.bytes.assign(bytes, bytes + part.length);
  packet.header.kind = PacketHeader::Kind::kDatagram;
  packet.header.to_queue_pair = request.wr.ud.remote_qpn;
  packet.header.from_queue_pair = pair.qp_num;
  packet.header.key = request.wr.ud.remote_qkey;
  CompleteWork(pair, work, IBV_WC_SUCCESS, route);
  if (Draw(faults_.datagram_loss)) return 0;
  const uint64_t to = route->device;
  if (Draw(faults_.datagram_copies)) wire_.Send(to, packet);
  if (!late_.has_value() && Draw(faults_.datagrams_late)) {
    late_.emplace(to, std::move(packet));
    return 0;
  }
  wire_.Send(to, std::move(packet));
  return 0;
}

void Device::OnDatagram(QueuePair& pair, const Packet& packet) {
  if (pair.qp_type != IBV_QPT_UD || pair.state == IBV_QPS_ERR || packet.header.key != pair.datagram_key) return;
  if (pair.receives.empty()) return;
  const Receive receive = pair.receives.front();
  const uint64_t size = kGlobalRouteBytes + packet.bytes.size();
  if (receive.length < size ||
      FindMemory(receive.key, reinterpret_cast<uint64_t>(receive.address), size, IBV_ACCESS_LOCAL_WRITE) == nullptr) {
    return;
  }
  pair.receives.pop_front();
  std::memset(receive.address, 0, kGlobalRouteBytes);
  std::memcpy(receive.address + kGlobalRouteBytes, packet.bytes.data(), packet.bytes.size());
  PacketHeader header = packet.header;
  header.total = size;
  CompleteReceive(pair, receive, IBV_WC_SUCCESS, header);
}

}  // namespace jax_fabric::verbs_double
