#include "csrc/benchmarks/raw_verbs.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace jax_fabric::benchmarks {
namespace {

constexpr uint8_t kPort = 1;
constexpr uint32_t kDepth = 1024;
constexpr size_t kChain = 4;

Status Check(const char* step, int error) {
  if (error == 0) return {};
  return MakeError(ErrorCode::kUnavailable, "{}: {}", step, strerror(error));
}
template <typename Object>
Status CheckMade(const char* step, const Object* object) {
  return Check(step, object == nullptr ? errno : 0);
}

}  // namespace

Result<std::unique_ptr<RawVerbs>> RawVerbs::Create(const std::string& device, std::span<std::byte> memory) {
  std::unique_ptr<RawVerbs> made(new RawVerbs(memory));
  JF_RETURN_IF_ERROR(made->Open(device));
  return made;
}

RawVerbs::~RawVerbs() {
  if (pair_ != nullptr) ibv_destroy_qp(pair_);
  if (queue_ != nullptr) ibv_destroy_cq(queue_);
  if (region_ != nullptr) ibv_dereg_mr(region_);
  if (domain_ != nullptr) ibv_dealloc_pd(domain_);
  if (context_ != nullptr) ibv_close_device(context_);
}

Status RawVerbs::Open(const std::string& device) {
  ibv_device** devices = ibv_get_device_list(nullptr);
  for (ibv_device** each = devices; each != nullptr && *each != nullptr; ++each) {
    if (device == ibv_get_device_name(*each)) context_ = ibv_open_device(*each);
  }
  if (devices != nullptr) ibv_free_device_list(devices);
  if (context_ == nullptr) return MakeError(ErrorCode::kNotFound, "there is no RDMA device '{}'", device);
  JF_RETURN_IF_ERROR(ChooseGid());
  domain_ = ibv_alloc_pd(context_);
  JF_RETURN_IF_ERROR(CheckMade("ibv_alloc_pd", domain_));
  region_ = ibv_reg_mr(domain_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  JF_RETURN_IF_ERROR(CheckMade("ibv_reg_mr", region_));
  queue_ = ibv_create_cq(context_, 2 * kDepth, nullptr, nullptr, 0);
  JF_RETURN_IF_ERROR(CheckMade("ibv_create_cq", queue_));
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = attributes.recv_cq = queue_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {kDepth, kDepth, 1, 1, 0};
  pair_ = ibv_create_qp(domain_, &attributes);
  JF_RETURN_IF_ERROR(CheckMade("ibv_create_qp", pair_));
  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = kPort;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  return Check("queue pair to INIT",
               ibv_modify_qp(pair_, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

// The last one of RoCE version 2: global ones come behind link-local ones.
Status RawVerbs::ChooseGid() {
  ibv_port_attr port = {};
  JF_RETURN_IF_ERROR(Check("ibv_query_port", ibv_query_port(context_, kPort, &port)));
  mtu_ = port.active_mtu;
  bool found = false;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid_entry entry = {};
    if (ibv_query_gid_ex(context_, kPort, static_cast<uint32_t>(i), &entry, 0) != 0) continue;
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET && entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    gid_ = entry.gid;
    gid_index_ = static_cast<uint8_t>(i);
    found = true;
  }
  if (found) return {};
  return MakeError(ErrorCode::kUnavailable, "port {} has no GID of RoCE version 2", kPort);
}

Result<Introduction> RawVerbs::Introduce() {
  const Identity own = {gid_, pair_->qp_num, region_->rkey, reinterpret_cast<uint64_t>(memory_.data())};
  Introduction introduction;
  introduction.memory.resize(sizeof(own));
  std::memcpy(introduction.memory.data(), &own, sizeof(own));
  return introduction;
}

Status RawVerbs::Accept(const Introduction& writer) {
  JF_RETURN_IF_ERROR(Join(writer));
  for (uint32_t i = 0; i < kDepth; ++i) JF_RETURN_IF_ERROR(PostReceive());
  return {};
}

Status RawVerbs::Join(const Introduction& other) {
  std::memcpy(&remote_, other.memory.data(), sizeof(remote_));
  ibv_qp_attr receive = {};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = mtu_;
  receive.dest_qp_num = remote_.queue_pair;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = 12;
  receive.ah_attr.is_global = 1;
  receive.ah_attr.port_num = kPort;
  receive.ah_attr.grh.dgid = remote_.gid;
  receive.ah_attr.grh.sgid_index = gid_index_;
  receive.ah_attr.grh.hop_limit = 64;
  JF_RETURN_IF_ERROR(
      Check("queue pair to RTR", ibv_modify_qp(pair_, &receive,
                                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                                   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)));
  ibv_qp_attr send = {};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = 15;
  send.retry_cnt = 6;
  send.rnr_retry = 7;  // without limit
  send.max_rd_atomic = 1;
  return Check("queue pair to RTS", ibv_modify_qp(pair_, &send,
                                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

Status RawVerbs::Write(const Batch& batch) {
  const size_t count = batch.offsets.size();
  std::array<ibv_wc, kCompletionsPerPoll> completions;
  ProgressGuard guard;
  size_t posted = 0;
  for (size_t done = 0; done < count;) {
    for (;;) {
      const size_t chain = std::min(kChain, count - posted);
      if (chain == 0 || posted + chain - done > batch.window) break;
      JF_RETURN_IF_ERROR(PostChain(batch, posted, chain));
      posted += chain;
    }
    const int read = ibv_poll_cq(queue_, static_cast<int>(completions.size()), completions.data());
    if (read < 0) return MakeError(ErrorCode::kInternal, "ibv_poll_cq failed");
    for (int i = 0; i < read; ++i) {
      const ibv_wc& each = completions[static_cast<size_t>(i)];
      if (each.status != IBV_WC_SUCCESS) {
        return MakeError(ErrorCode::kInternal, "raw verbs: a write: {}", ibv_wc_status_str(each.status));
      }
      done += each.wr_id;
    }
    if (read == 0) JF_RETURN_IF_ERROR(guard.Idle("raw verbs"));
    if (read > 0) guard.Moved();
  }
  return {};
}

Status RawVerbs::PostChain(const Batch& batch, size_t first, size_t count) {
  std::array<ibv_sge, kChain> pieces;
  std::array<ibv_send_wr, kChain> requests = {};
  for (size_t i = 0; i < count; ++i) {
    const uint64_t offset = batch.offsets[first + i];
    const bool last = i + 1 == count;
    pieces[i] = {reinterpret_cast<uint64_t>(memory_.data()) + offset, static_cast<uint32_t>(batch.write_bytes),
                 region_->lkey};
    ibv_send_wr& request = requests[i];
    request.wr_id = count;  // so many are done when it reports
    request.next = last ? nullptr : &requests[i + 1];
    request.sg_list = &pieces[i];
    request.num_sge = 1;
    request.opcode = batch.immediates ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.send_flags = last ? IBV_SEND_SIGNALED : 0;
    request.wr.rdma.remote_addr = remote_.address + offset;
    request.wr.rdma.rkey = remote_.key;
  }
  ibv_send_wr* bad = nullptr;
  return Check("ibv_post_send", ibv_post_send(pair_, requests.data(), &bad));
}

Status RawVerbs::PostReceive() {
  ibv_recv_wr request = {};
  ibv_recv_wr* bad = nullptr;
  return Check("ibv_post_recv", ibv_post_recv(pair_, &request, &bad));
}

void RawVerbs::Poll() {
  std::array<ibv_wc, kCompletionsPerPoll> completions;
  const int read = ibv_poll_cq(queue_, static_cast<int>(completions.size()), completions.data());
  for (int i = 0; i < read; ++i) static_cast<void>(PostReceive());
}

}  // namespace jax_fabric::benchmarks
