#include "csrc/engine/domains/connectx/datagram_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "csrc/engine/domains/connectx/work_id.h"

namespace jax_fabric::connectx {

DatagramEndpoint::DatagramEndpoint(VerbsDevice& device, uint32_t key)
    : device_(device),
      key_(key),
      sends_(device, kMaxBytes, kSends),
      receives_(device, kGlobalRouteBytes + kMaxBytes, kReceives),
      qp_(nullptr, device.verbs().ibv_destroy_qp) {}

Result<std::unique_ptr<DatagramEndpoint>> DatagramEndpoint::Create(VerbsDevice& device, ibv_cq* queue, uint32_t key) {
  std::unique_ptr<DatagramEndpoint> endpoint(new DatagramEndpoint(device, key));
  JF_RETURN_IF_ERROR(endpoint->Start(queue));
  return endpoint;
}

Status DatagramEndpoint::Start(ibv_cq* queue) {
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = attributes.recv_cq = queue;
  attributes.qp_type = IBV_QPT_UD;
  attributes.cap.max_send_wr = kSends;
  attributes.cap.max_recv_wr = kReceives;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  qp_.reset(device_.verbs().ibv_create_qp(device_.pd(), &attributes));
  if (qp_ == nullptr) {
    return MakeError(ErrorCode::kResourceExhausted, "{}: no queue pair for datagrams: {}", device_.name(),
                     ErrnoWords(errno));
  }
  ibv_qp_attr step = {};
  step.port_num = device_.port();
  step.qkey = key_;
  const auto go = [&](ibv_qp_state state, int mask) -> Status {
    step.qp_state = state;
    const int error = device_.verbs().ibv_modify_qp(qp_.get(), &step, mask);
    if (error == 0) return {};
    return MakeError(ErrorCode::kUnavailable, "{}: the queue pair for datagrams cannot go to state {}: {}; {}",
                     device_.name(), static_cast<int>(state), ErrnoWords(error), device_.PortWords());
  };
  JF_RETURN_IF_ERROR(go(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
  for (uint32_t i = 0; i < kReceives; ++i) {
    JF_ASSIGN_OR_RETURN(const uint32_t buffer, receives_.Take());
    Repost(buffer);
  }
  JF_RETURN_IF_ERROR(go(IBV_QPS_RTR, IBV_QP_STATE));
  return go(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

Result<DatagramRoute> DatagramEndpoint::RouteTo(const ConnectXAddress& peer) {
  ibv_ah_attr attributes = {};
  JF_RETURN_IF_ERROR(device_.FillRoute(peer.port, attributes));
  DatagramRoute route;
  if (ibv_ah* handle = device_.verbs().ibv_create_ah(device_.pd(), &attributes); handle != nullptr) {
    route.handle = std::shared_ptr<ibv_ah>(handle, device_.verbs().ibv_destroy_ah);
  }
  route.queue_pair = peer.datagram_queue_pair;
  route.key = peer.datagram_key;
  if (route.handle == nullptr) {
    return MakeError(ErrorCode::kUnavailable, "{}: no route to the peer's port: {}; {}", device_.name(),
                     ErrnoWords(errno), device_.PortWords());
  }
  return route;
}

bool DatagramEndpoint::Send(const DatagramRoute& route, ByteView bytes) {
  if (bytes.size() > kMaxBytes) return false;
  const auto buffer = sends_.Take();
  if (!buffer.has_value()) return false;
  std::memcpy(sends_.bytes(*buffer).data(), bytes.data(), bytes.size());
  ibv_sge element = sends_.Element(*buffer, bytes.size());
  ibv_send_wr request = {};
  request.wr_id = WorkId{WorkId::Kind::kDatagramSend, 0, *buffer}.Pack();
  request.sg_list = &element;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud.ah = route.handle.get();
  request.wr.ud.remote_qpn = route.queue_pair;
  request.wr.ud.remote_qkey = route.key;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(qp_.get(), &request, &bad) != 0) {
    sends_.Return(*buffer);
    return false;
  }
  routes_[*buffer] = route.handle;
  ++sending_;
  return true;
}

ByteView DatagramEndpoint::Received(uint32_t buffer, uint32_t bytes) const {
  const auto all = receives_.bytes(buffer);
  if (bytes < kGlobalRouteBytes) return {};
  return ByteView(all).subspan(kGlobalRouteBytes, std::min<size_t>(bytes, all.size()) - kGlobalRouteBytes);
}

void DatagramEndpoint::Repost(uint32_t buffer) {
  ibv_sge element = receives_.Element(buffer, receives_.bytes(buffer).size());
  ibv_recv_wr request = {};
  request.wr_id = WorkId{WorkId::Kind::kDatagramReceive, 0, buffer}.Pack();
  request.sg_list = &element;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_recv(qp_.get(), &request, &bad) != 0) receives_.Return(buffer);
}

}  // namespace jax_fabric::connectx
