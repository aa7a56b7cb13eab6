// Device: what comes to it.
#include <cstring>
#include <mutex>
#include <utility>

#include "csrc/engine/domains/efa/fakesrd/device.h"

namespace jax_fabric::fake_srd {
namespace {

constexpr int64_t kNotReadyNs = 1'000'000;

// Devices take turns at memory: that two of them write to one place is their users' matter, and no race of this code.
void CopyToMemory(void* to, const std::byte* bytes, size_t size) {
  static std::mutex bus;
  const std::lock_guard<std::mutex> lock(bus);
  std::memcpy(to, bytes, size);
}

// Where it lies that requests call `address`.
std::byte* Place(const Memory& memory, uint64_t address) {
  return static_cast<std::byte*>(memory.addr) + (address - memory.first);
}

}  // namespace

void Device::Answer(const PacketHeader& to, PacketHeader::Kind kind, Status status, bool last) {
  Packet answer;
  answer.header.kind = kind;
  answer.header.message = to.message;
  answer.header.status = static_cast<uint32_t>(status);
  answer.header.last = last;
  wire_.Send(to.from, std::move(answer));
}

void Device::OnPacket(Packet packet) {
  const PacketHeader& header = packet.header;
  if (header.kind != PacketHeader::Kind::kData) return OnAnswer(header);
  const auto found = pairs_.find(header.to_queue_pair);
  if (found == pairs_.end() || found->second->key != header.queue_key ||
      (found->second->qp_base.state != IBV_QPS_RTR && found->second->qp_base.state != IBV_QPS_RTS)) {
    return Answer(header, PacketHeader::Kind::kRefusal, Status::kBadQueuePair, true);
  }
  if (header.is_write) return OnWrite(*found->second, std::move(packet));
  DeliverOrWait(*found->second, std::move(packet));
}

void Device::OnWrite(QueuePair& pair, Packet packet) {
  const PacketHeader& header = packet.header;
  const auto refuse = [&](Status status) {
    bytes_arrived_.erase({header.from, header.message});
    Answer(header, PacketHeader::Kind::kRefusal, status, true);
  };
  if (const auto peer = peers_.find(header.from); peer == peers_.end() || peer->second.routes == 0) {
    return refuse(Status::kUnknownPeer);
  }
  if (header.total > 0) {
    const Memory* memory = FindMemory(header.key, header.address, header.total, IBV_ACCESS_REMOTE_WRITE);
    if (memory == nullptr) return refuse(Status::kBadRemoteAddress);
    CopyToMemory(Place(*memory, header.address + header.offset), packet.bytes.data(), packet.bytes.size());
  }
  if (packet.bytes.size() < header.total) {
    uint64_t& arrived = bytes_arrived_[{header.from, header.message}];
    arrived += packet.bytes.size();
    if (arrived < header.total) return Answer(header, PacketHeader::Kind::kAck, Status::kOk, false);
    bytes_arrived_.erase({header.from, header.message});
  }
  if (!header.has_immediate) return Answer(header, PacketHeader::Kind::kAck, Status::kOk, true);
  DeliverOrWait(pair, std::move(packet));
}

void Device::DeliverOrWait(QueuePair& pair, Packet packet) {
  const bool takes_receive = !packet.header.is_write || !pair.unsolicited;
  const bool not_ready = takes_receive && Draw(faults_.receiver_not_ready);
  if (!not_ready && Deliver(pair, packet)) return;
  ++statistics_.not_ready;
  pair.waiting.push_back({std::move(packet), NowNs() + (not_ready ? kNotReadyNs : 0), 0});
}

void Device::RetryWaiting(QueuePair& pair, int64_t now_ns) {
  std::erase_if(pair.waiting, [&](Waiting& each) {
    if (now_ns < each.due_ns) return false;
    if (Deliver(pair, each.packet)) return true;
    each.due_ns = now_ns + kNotReadyNs;
    if (each.packet.header.retries == QueuePair::kForEver || ++each.tries <= each.packet.header.retries) return false;
    Answer(each.packet.header, PacketHeader::Kind::kRefusal, Status::kReceiverNotReady, true);
    return true;
  });
}

bool Device::Deliver(QueuePair& pair, const Packet& packet) {
  const PacketHeader& header = packet.header;
  Completion completion;
  completion.opcode = header.is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  completion.queue_pair = pair.qp_base.qp_num;
  completion.bytes = static_cast<uint32_t>(header.total);
  completion.has_immediate = header.has_immediate;
  completion.immediate = header.immediate;
  completion.source = header.from;
  completion.source_queue_pair = header.from_queue_pair;
  const auto peer = peers_.find(header.from);
  if (peer != peers_.end() && peer->second.routes > 0) completion.route = peer->second.number;
  completion.unsolicited = header.is_write && pair.unsolicited;
  if (!completion.unsolicited) {
    if (pair.receives.empty()) return false;
    const Receive receive = std::move(pair.receives.front());
    pair.receives.pop_front();
    completion.id = receive.id;
    if (!header.is_write) completion.status = Scatter(receive, packet.bytes);
    if (!header.is_write && Draw(faults_.receive_error)) completion.status = Status::kBadLocalKey;
  }
  Complete(*pair.receive_queue, completion);
  if (completion.status == Status::kReceiveTooShort) {
    Answer(header, PacketHeader::Kind::kRefusal, completion.status, true);
  } else {
    Answer(header, PacketHeader::Kind::kAck, Status::kOk, true);
  }
  return true;
}

Status Device::Scatter(const Receive& receive, const std::vector<std::byte>& bytes) const {
  size_t done = 0;
  for (const ibv_sge& part : receive.parts) {
    const size_t size = std::min<size_t>(part.length, bytes.size() - done);
    if (size == 0) break;
    const Memory* memory = FindMemory(part.lkey, part.addr, size, IBV_ACCESS_LOCAL_WRITE);
    if (memory == nullptr) return Status::kBadLocalKey;
    CopyToMemory(Place(*memory, part.addr), bytes.data() + done, size);
    done += size;
  }
  return done == bytes.size() ? Status::kOk : Status::kReceiveTooShort;
}

int Device::PostReceive(QueuePair& pair, ibv_recv_wr* work, ibv_recv_wr** bad) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (; work != nullptr; work = work->next) {
    if (pair.receives.size() >= pair.receive_depth || work->num_sge > static_cast<int>(kMaxParts)) {
      *bad = work;
      return work->num_sge > static_cast<int>(kMaxParts) ? EINVAL : ENOMEM;
    }
    pair.receives.push_back({work->wr_id, {work->sg_list, work->sg_list + work->num_sge}});
  }
  RetryWaiting(pair, NowNs());
  return 0;
}

}  // namespace jax_fabric::fake_srd
