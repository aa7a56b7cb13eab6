// Device: reliable connections.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/engine/domains/connectx/double/device.h"
#include "csrc/engine/domains/connectx/double/gpu_copies.h"

namespace jax_fabric::verbs_double {
namespace {

constexpr uint64_t kWindow = 32;  // packets on the way
constexpr int64_t kNotReadyNs = 1'000'000;

// Devices take turns at memory: that two of them write to one place is their users' matter, and no race of this code.
void CopyToMemory(void* to, const std::vector<std::byte>& bytes) {
  static std::mutex bus;
  const std::lock_guard<std::mutex> lock(bus);
  std::memcpy(to, bytes.data(), bytes.size());
}

void CopyFromMemory(const Work& work, uint64_t size, std::vector<std::byte>& bytes) {
  const std::byte* source = (work.inlined.empty() ? work.source : work.inlined.data()) + work.offset;
  if (!work.on_gpu) return bytes.assign(source, source + size);
  bytes.resize(size);
  GpuCopy(bytes.data(), source, size);
}

}  // namespace

int Device::PostOne(QueuePair& pair, const ibv_send_wr& request) {
  if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) return EINVAL;
  if (pair.work.size() >= pair.depth) return ENOMEM;
  if (request.num_sge > 1) return EINVAL;
  Work work;
  work.id = request.wr_id;
  work.signaled = pair.signal_all || (request.send_flags & IBV_SEND_SIGNALED) != 0;
  work.is_write = request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  work.has_immediate = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || request.opcode == IBV_WR_SEND_WITH_IMM;
  if (!work.is_write && request.opcode != IBV_WR_SEND && !work.has_immediate) return EINVAL;
  work.immediate = request.imm_data;
  if (request.num_sge == 1) {
    work.source = reinterpret_cast<const std::byte*>(request.sg_list[0].addr);
    work.length = request.sg_list[0].length;
    work.key = request.sg_list[0].lkey;
  }
  if ((request.send_flags & IBV_SEND_INLINE) != 0) {
    if (work.length > kMaxInline) return EINVAL;
    work.inlined.assign(work.source, work.source + work.length);
  }
  if (work.is_write) {
    work.remote_address = request.wr.rdma.remote_addr;
    work.remote_key = request.wr.rdma.rkey;
  }
  if (pair.state == IBV_QPS_ERR) {
    CompleteWork(pair, work, IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  if (pair.work.empty()) pair.progress_ns = NowNs();
  work.number = pair.messages++;
  pair.work.push_back(std::move(work));
  SendWork(pair);
  return 0;
}

void Device::SendWork(QueuePair& pair) {
  while (pair.state == IBV_QPS_RTS && pair.next < pair.work.size() && pair.next_packet - pair.acknowledged < kWindow) {
    Work& work = pair.work[pair.next];
    const bool reads = work.offset == 0 && work.length > 0 && work.inlined.empty();
    const auto at = reinterpret_cast<uint64_t>(work.source);
    const Memory* memory = reads ? FindMemory(work.key, at, work.length, 0) : nullptr;
    if (memory != nullptr) work.source = memory->At(at), work.on_gpu = memory->on_gpu;
    if (reads && memory == nullptr) {
      if (pair.next > 0) return;  // what is in front of it ends first
      const Work refused = std::move(work);
      pair.work.pop_front();
      CompleteWork(pair, refused, IBV_WC_LOC_PROT_ERR);
      return Fail(pair);
    }
    SendPart(pair, work);
  }
}

void Device::SendPart(QueuePair& pair, Work& work) {
  Packet packet;
  PacketHeader& header = packet.header;
  const uint64_t size = std::min<uint64_t>(Wire::kMaxPayload, work.length - work.offset);
  if (size > 0) CopyFromMemory(work, size, packet.bytes);
  header.is_write = work.is_write;
  header.has_immediate = work.has_immediate;
  header.immediate = work.immediate;
  header.to_queue_pair = pair.number;
  header.from_queue_pair = pair.qp_num;
  header.number = pair.next_packet++;
  header.message = work.number;
  header.address = work.remote_address;
  header.total = work.length;
  header.offset = work.offset;
  header.key = work.remote_key;
  work.offset += size;
  header.last = work.offset == work.length;
  if (header.last) {
    work.sent = true;
    ++pair.next;
  }
  wire_.Send(pair.device, std::move(packet));
}

void Device::OnPacket(Packet packet) {
  const auto found = pairs_.find(packet.header.to_queue_pair);
  if (found == pairs_.end()) return;
  QueuePair& pair = *found->second;
  if (packet.header.kind == PacketHeader::Kind::kDatagram) return OnDatagram(pair, packet);
  const bool ours =
      pair.qp_type == IBV_QPT_RC && pair.device == packet.header.from && pair.number == packet.header.from_queue_pair;
  if (!ours || (pair.state != IBV_QPS_RTR && pair.state != IBV_QPS_RTS)) return;
  switch (packet.header.kind) {
    case PacketHeader::Kind::kData:
      return OnData(pair, std::move(packet));
    case PacketHeader::Kind::kAck:
      return OnAck(pair, packet.header);
    case PacketHeader::Kind::kRefusal:
      return OnRefusal(pair, packet.header);
    case PacketHeader::Kind::kBusy:
      pair.progress_ns = NowNs();
      return;
    case PacketHeader::Kind::kDatagram:
      return;
  }
}

void Device::OnData(QueuePair& pair, Packet packet) {
  if (packet.header.number != pair.expected_packet) return;  // both sides agree on where numbers begin
  ++pair.expected_packet;
  if (pair.waiting.empty() && Take(pair, packet)) return;
  if (pair.state != IBV_QPS_ERR) pair.waiting.push_back(std::move(packet));
}

void Device::RetryWaiting(QueuePair& pair) {
  while (!pair.waiting.empty()) {
    const Packet packet = std::move(pair.waiting.front());
    pair.waiting.pop_front();
    if (Take(pair, packet)) continue;
    pair.waiting.push_front(packet);
    return;
  }
}

bool Device::TakeReceive(QueuePair& pair) {
  if (pair.has_receive) return true;
  if (!pair.not_ready_drawn) {
    pair.not_ready_drawn = true;
    pair.not_ready_until_ns = Draw(faults_.receiver_not_ready) ? NowNs() + kNotReadyNs : 0;
  }
  if (pair.not_ready_until_ns > 0 && NowNs() < pair.not_ready_until_ns) return false;
  auto& receives = pair.srq != nullptr ? static_cast<ReceiveQueue*>(pair.srq)->receives : pair.receives;
  if (receives.empty()) return false;
  pair.receive = receives.front();
  receives.pop_front();
  pair.has_receive = true;
  pair.not_ready_drawn = false;
  return true;
}

bool Device::Take(QueuePair& pair, const Packet& packet) {
  const PacketHeader& header = packet.header;
  if (header.is_write) {
    if (header.offset == 0 && header.total > 0 &&
        ((pair.access & IBV_ACCESS_REMOTE_WRITE) == 0 ||
         FindMemory(header.key, header.address, header.total, IBV_ACCESS_REMOTE_WRITE) == nullptr)) {
      Refuse(pair, header, IBV_WC_REM_ACCESS_ERR);
      return true;
    }
    // Again for each part: memory may be deregistered meanwhile.
    const uint64_t at = header.address + header.offset;
    if (!packet.bytes.empty()) {
      const Memory* memory = FindMemory(header.key, at, packet.bytes.size(), IBV_ACCESS_REMOTE_WRITE);
      if (memory == nullptr) {
        Refuse(pair, header, IBV_WC_REM_ACCESS_ERR);
        return true;
      }
      // Twice does no harm: a part that waits for a receive is here again.
      if (memory->on_gpu) {
        if (!GpuCopy(memory->At(at), packet.bytes.data(), packet.bytes.size())) {
          Refuse(pair, header, IBV_WC_REM_OP_ERR);
          return true;
        }
      } else {
        CopyToMemory(memory->At(at), packet.bytes);
      }
    }
  }
  const bool needs_receive = !header.is_write || (header.last && header.has_immediate);
  if (needs_receive && !TakeReceive(pair)) return false;
  if (!header.is_write) {
    if (header.total > pair.receive.length ||
        (header.total > 0 && FindMemory(pair.receive.key, reinterpret_cast<uint64_t>(pair.receive.address),
                                        header.total, IBV_ACCESS_LOCAL_WRITE) == nullptr)) {
      CompleteReceive(pair, pair.receive, IBV_WC_LOC_LEN_ERR, header);
      pair.has_receive = false;
      Refuse(pair, header, IBV_WC_REM_INV_REQ_ERR);
      return true;
    }
    if (!packet.bytes.empty()) {
      CopyToMemory(pair.receive.address + header.offset, packet.bytes);
    }
  }
  if (header.last) {
    if (needs_receive) CompleteReceive(pair, pair.receive, IBV_WC_SUCCESS, header);
    pair.has_receive = false;
    pair.complete = header.message + 1;
  }
  Answer(pair, PacketHeader::Kind::kAck);
  return true;
}

void Device::Answer(QueuePair& pair, PacketHeader::Kind kind) {
  Packet answer;
  answer.header.kind = kind;
  answer.header.to_queue_pair = pair.number;
  answer.header.from_queue_pair = pair.qp_num;
  answer.header.number = pair.expected_packet - pair.waiting.size();
  answer.header.message = pair.complete;
  wire_.Send(pair.device, std::move(answer));
}

void Device::Refuse(QueuePair& pair, const PacketHeader& header, ibv_wc_status status) {
  Packet answer;
  answer.header.kind = PacketHeader::Kind::kRefusal;
  answer.header.to_queue_pair = pair.number;
  answer.header.from_queue_pair = pair.qp_num;
  answer.header.message = header.message;
  answer.header.status = status;
  wire_.Send(pair.device, std::move(answer));
  Fail(pair);
}

void Device::OnAck(QueuePair& pair, const PacketHeader& header) {
  pair.progress_ns = NowNs();
  pair.acknowledged = std::max(pair.acknowledged, header.number);
  while (!pair.work.empty() && pair.work.front().sent && pair.work.front().number < header.message) {
    const Work done = std::move(pair.work.front());
    pair.work.pop_front();
    --pair.next;
    CompleteWork(pair, done, IBV_WC_SUCCESS);
  }
  SendWork(pair);
}

void Device::OnRefusal(QueuePair& pair, const PacketHeader& header) {
  while (!pair.work.empty() && pair.work.front().number < header.message) {
    const Work done = std::move(pair.work.front());
    pair.work.pop_front();
    CompleteWork(pair, done, IBV_WC_SUCCESS);
  }
  if (!pair.work.empty()) {
    const Work refused = std::move(pair.work.front());
    pair.work.pop_front();
    CompleteWork(pair, refused, static_cast<ibv_wc_status>(header.status));
  }
  Fail(pair);
}

}  // namespace jax_fabric::verbs_double
