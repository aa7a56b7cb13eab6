#include "csrc/engine/domains/connectx/queue_pair.h"

#include <algorithm>
#include <cerrno>

#include "csrc/base/random_bytes.h"

namespace jax_fabric::connectx {
namespace {

// Waits for receives at the other end are without limit: a receiver that is not polled loses nothing.
constexpr uint8_t kRetryReceiverNotReady = 7;
constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms

}  // namespace

Result<QueuePair> QueuePair::Create(VerbsDevice& device, ibv_cq* queue, ibv_srq* receives,
                                    const QueuePairShape& shape) {
  JF_ASSIGN_OR_RETURN(const uint64_t random, RandomId());
  ibv_qp* qp = nullptr;
  uint32_t inline_bytes = shape.inline_bytes;
  for (;;) {
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = attributes.recv_cq = queue;
    attributes.srq = receives;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = shape.depth;
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_inline_data = inline_bytes;
    qp = device.verbs().ibv_create_qp(device.pd(), &attributes);
    if (qp != nullptr || inline_bytes == 0) break;
    inline_bytes = 0;
  }
  if (qp == nullptr) {
    return MakeError(ErrorCode::kResourceExhausted, "{}: no queue pair of {} entries: {}", device.name(), shape.depth,
                     ErrnoWords(errno));
  }
  QueuePair pair(device, qp);
  pair.first_packet_ = static_cast<uint32_t>(random) & 0xffffff;
  pair.inline_bytes_ = inline_bytes;
  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = device.port();
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  JF_RETURN_IF_ERROR(pair.Modify(init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"));
  return pair;
}

Status QueuePair::Modify(ibv_qp_attr& attributes, int mask, const char* step) {
  const int error = device_->verbs().ibv_modify_qp(qp_.get(), &attributes, mask);
  if (error == 0) return {};
  return MakeError(ErrorCode::kUnavailable, "{}: a queue pair cannot go to {}: {}; {}", device_->name(), step,
                   ErrnoWords(error), device_->PortWords());
}

Status QueuePair::Connect(const PortAddress& port, const QueuePairAddress& peer, const ConnectXDomainOptions& options) {
  ibv_qp_attr receive = {};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = static_cast<ibv_mtu>(std::min(port.mtu, device_->address().mtu));
  receive.dest_qp_num = peer.number;
  receive.rq_psn = peer.first_packet;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = kReceiverNotReadyTimer;
  JF_RETURN_IF_ERROR(device_->FillRoute(port, receive.ah_attr));
  JF_RETURN_IF_ERROR(Modify(receive,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                            "RTR"));
  ibv_qp_attr send = {};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = static_cast<uint8_t>(options.ack_timeout_exponent);
  send.retry_cnt = static_cast<uint8_t>(options.retry_count);
  send.rnr_retry = kRetryReceiverNotReady;
  send.sq_psn = first_packet_;
  send.max_rd_atomic = 1;
  return Modify(
      send,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      "RTS");
}

bool QueuePair::Fail() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  return device_->verbs().ibv_modify_qp(qp_.get(), &attributes, IBV_QP_STATE) == 0;
}

}  // namespace jax_fabric::connectx
