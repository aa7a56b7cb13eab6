#include "csrc/engine/domains/efa/fakesrd/work_requests.h"

#include <cerrno>
#include <cstring>

#include "csrc/engine/domains/efa/fakesrd/device.h"
#include "csrc/engine/domains/efa/fakesrd/gids.h"

namespace jax_fabric::fake_srd {
namespace {

QueuePair& Of(ibv_qp_ex* pair) { return static_cast<QueuePair&>(*pair); }
const Completion& Current(ibv_cq_ex* queue) { return static_cast<CompletionQueue*>(queue)->current; }
const Completion& Current(efadv_cq* queue) { return static_cast<CompletionQueue::Advanced*>(queue)->queue->current; }

Request& Begin(ibv_qp_ex* pair, ibv_wc_opcode opcode) {
  Request& request = Of(pair).batch.emplace_back();
  request.pair = &Of(pair);
  request.id = pair->wr_id;
  request.opcode = opcode;
  return request;
}

void BeginWrite(ibv_qp_ex* pair, ibv_wc_opcode opcode, uint32_t key, uint64_t address) {
  Request& request = Begin(pair, opcode);
  request.remote_key = key;
  request.remote_address = address;
}

void SetImmediate(ibv_qp_ex* pair, uint32_t immediate) {
  Of(pair).batch.back().has_immediate = true;
  Of(pair).batch.back().immediate = immediate;
}

void Start(ibv_qp_ex* pair) { Of(pair).batch.clear(); }
int Post(ibv_qp_ex* pair) { return Of(pair).device->Post(Of(pair)); }
void Send(ibv_qp_ex* pair) { Begin(pair, IBV_WC_SEND); }
void SendImmediate(ibv_qp_ex* pair, __be32 immediate) {
  Begin(pair, IBV_WC_SEND);
  SetImmediate(pair, immediate);
}
void Write(ibv_qp_ex* pair, uint32_t key, uint64_t address) { BeginWrite(pair, IBV_WC_RDMA_WRITE, key, address); }
void WriteImmediate(ibv_qp_ex* pair, uint32_t key, uint64_t address, __be32 immediate) {
  BeginWrite(pair, IBV_WC_RDMA_WRITE, key, address);
  SetImmediate(pair, immediate);
}
void Read(ibv_qp_ex* pair, uint32_t key, uint64_t address) { BeginWrite(pair, IBV_WC_RDMA_READ, key, address); }

void SetAddress(ibv_qp_ex* pair, ibv_ah* route, uint32_t queue_pair, uint32_t queue_key) {
  Request& request = Of(pair).batch.back();
  request.device = static_cast<Route*>(route)->device;
  request.queue_pair = queue_pair;
  request.queue_key = queue_key;
}

void SetParts(ibv_qp_ex* pair, size_t count, const ibv_sge* parts) {
  Request& request = Of(pair).batch.back();
  request.parts.assign(parts, parts + count);
  for (const ibv_sge& part : request.parts) request.length += part.length;
}

void SetPart(ibv_qp_ex* pair, uint32_t key, uint64_t address, uint32_t length) {
  const ibv_sge part{address, length, key};
  SetParts(pair, 1, &part);
}

void SetInlineParts(ibv_qp_ex* pair, size_t count, const ibv_data_buf* parts) {
  Request& request = Of(pair).batch.back();
  request.is_inline = true;
  for (size_t i = 0; i < count; ++i) {
    const auto* bytes = static_cast<const std::byte*>(parts[i].addr);
    request.inlined.insert(request.inlined.end(), bytes, bytes + parts[i].length);
  }
  request.length = request.inlined.size();
}

void SetInline(ibv_qp_ex* pair, void* bytes, size_t length) {
  const ibv_data_buf part{bytes, length};
  SetInlineParts(pair, 1, &part);
}

// The older interface, which the provider uses for some messages.
int PostSend(ibv_qp* base, ibv_send_wr* work, ibv_send_wr** bad) {
  auto* pair = reinterpret_cast<ibv_qp_ex*>(base);
  for (; work != nullptr; work = work->next) {
    Start(pair);
    pair->wr_id = work->wr_id;
    if (work->opcode != IBV_WR_SEND && work->opcode != IBV_WR_SEND_WITH_IMM) {
      *bad = work;
      return EOPNOTSUPP;
    }
    Send(pair);
    if (work->opcode == IBV_WR_SEND_WITH_IMM) SetImmediate(pair, work->imm_data);
    SetAddress(pair, work->wr.ud.ah, work->wr.ud.remote_qpn, work->wr.ud.remote_qkey);
    SetParts(pair, static_cast<size_t>(work->num_sge), work->sg_list);
    if (const int error = Post(pair); error != 0) {
      *bad = work;
      return error;
    }
  }
  return 0;
}

int PostReceive(ibv_qp* base, ibv_recv_wr* work, ibv_recv_wr** bad) {
  QueuePair& pair = Of(reinterpret_cast<ibv_qp_ex*>(base));
  return pair.device->PostReceive(pair, work, bad);
}

int Next(ibv_cq_ex* queue) {
  auto& polled = static_cast<CompletionQueue&>(*queue);
  return polled.device->Poll(polled);
}

int ReadSourceGid(efadv_cq* queue, ibv_gid* gid) {
  if (Current(queue).route != kUnknownRoute) return ENOENT;
  *gid = GidOf(Current(queue).source);
  return 0;
}

}  // namespace

void FillTable(ibv_context_ops& operations) {
  operations.post_send = PostSend;
  operations.post_recv = PostReceive;
  operations.req_notify_cq = [](ibv_cq*, int) { return 0; };
}

void FillTable(QueuePair& pair) {
  pair.wr_start = Start;
  pair.wr_complete = Post;
  pair.wr_abort = Start;
  pair.wr_send = Send;
  pair.wr_send_imm = SendImmediate;
  pair.wr_rdma_write = Write;
  pair.wr_rdma_write_imm = WriteImmediate;
  pair.wr_rdma_read = Read;
  pair.wr_set_ud_addr = SetAddress;
  pair.wr_set_sge = SetPart;
  pair.wr_set_sge_list = SetParts;
  pair.wr_set_inline_data = SetInline;
  pair.wr_set_inline_data_list = SetInlineParts;
}

void FillTable(CompletionQueue& queue) {
  queue.start_poll = [](ibv_cq_ex* polled, ibv_poll_cq_attr*) { return Next(polled); };
  queue.next_poll = Next;
  queue.end_poll = [](ibv_cq_ex*) {};
  queue.read_opcode = [](ibv_cq_ex* polled) { return Current(polled).opcode; };
  queue.read_vendor_err = [](ibv_cq_ex* polled) { return static_cast<uint32_t>(Current(polled).status); };
  queue.read_byte_len = [](ibv_cq_ex* polled) { return Current(polled).bytes; };
  queue.read_imm_data = [](ibv_cq_ex* polled) -> __be32 { return Current(polled).immediate; };
  queue.read_qp_num = [](ibv_cq_ex* polled) { return Current(polled).queue_pair; };
  queue.read_src_qp = [](ibv_cq_ex* polled) { return Current(polled).source_queue_pair; };
  queue.read_wc_flags = [](ibv_cq_ex* polled) -> unsigned {
    return Current(polled).has_immediate ? IBV_WC_WITH_IMM : 0;
  };
  queue.read_slid = [](ibv_cq_ex* polled) -> uint32_t { return Current(polled).route; };
  queue.read_sl = [](ibv_cq_ex*) -> uint8_t { return 0; };
  queue.read_dlid_path_bits = [](ibv_cq_ex*) -> uint8_t { return 0; };
  queue.advanced.wc_read_sgid = ReadSourceGid;
  queue.advanced.wc_is_unsolicited = [](efadv_cq* polled) { return Current(polled).unsolicited; };
  queue.advanced.queue = &queue;
}

}  // namespace jax_fabric::fake_srd
