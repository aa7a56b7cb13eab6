// Device: what it sends, in no order.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/engine/domains/efa/fakesrd/device.h"

namespace jax_fabric::fake_srd {
namespace {

constexpr uint32_t kUnansweredSegments = 64;  // of one peer
constexpr int64_t kSoonNs = 200'000;          // not worth sleeping
// Long writes go in longer segments than EFA's, which are of one packet: it is the order that matters here.
constexpr uint64_t kPacketBytes = 8192;
constexpr uint64_t kLongWriteBytes = 256 * 1024;

}  // namespace

bool Device::LocalKeysFit(const Request& request) const {
  return request.is_inline || std::all_of(request.parts.begin(), request.parts.end(), [&](const ibv_sge& part) {
           return part.length == 0 || FindMemory(part.lkey, part.addr, part.length, 0) != nullptr;
         });
}

int Device::Post(QueuePair& pair) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Request> batch = std::exchange(pair.batch, {});
  if (pair.qp_base.state != IBV_QPS_RTS) return EINVAL;
  // A whole batch is never refused by a draw: libfabric counts what a device has room for, and what it has accepted
  // with FI_MORE would be lost.
  if (pair.outstanding + batch.size() > pair.depth || (batch.size() == 1 && Draw(faults_.send_queue_full))) {
    ++statistics_.refused_posts;
    return ENOMEM;
  }
  const int64_t now_ns = NowNs();
  for (Request& each : batch) {
    auto request = std::make_unique<Request>(std::move(each));
    request->number = ++next_request_;
    request->progress_ns = now_ns;
    request->not_before_ns = now_ns;
    if (faults_.start_delay_us > 0) request->not_before_ns += int64_t(random_() % faults_.start_delay_us) * 1000;
    const bool write = request->opcode == IBV_WC_RDMA_WRITE;
    request->segment_bytes = request->length > kLongWriteBytes ? nic_double::Wire::kMaxPayload : kPacketBytes;
    if (!write) request->segment_bytes = kMaxMessageBytes;
    request->segments = {0};
    for (uint64_t at = request->segment_bytes; at < request->length; at += request->segment_bytes) {
      request->segments.push_back(at);
    }
    if (faults_.window > 1) std::shuffle(request->segments.begin(), request->segments.end(), random_);
    Request* kept = request.get();
    requests_.emplace(kept->number, std::move(request));
    ++pair.outstanding;
    if (kept->opcode == IBV_WC_RDMA_READ) {
      Finish(kept->number, Status::kUnsupported);
    } else if (kept->length > (write ? kMaxWriteBytes : kMaxMessageBytes)) {
      Finish(kept->number, Status::kBadLength);
    } else if (!LocalKeysFit(*kept)) {
      Finish(kept->number, Status::kBadLocalKey);
    } else {
      unsent_.push_back(kept);
    }
  }
  if (Progress()) wire_.Wake();
  return 0;
}

bool Device::SomeLeaveSoon(int64_t now_ns) {
  return std::any_of(unsent_.begin(), unsent_.end(), [&](const Request* request) {
    return request->not_before_ns - now_ns < kSoonNs && peers_[request->device].unanswered < kUnansweredSegments;
  });
}

bool Device::SendSome(int64_t now_ns) {
  const size_t choice = std::min<size_t>(unsent_.size(), std::max(faults_.window, 1u));
  if (choice == 0) return false;
  const size_t first = choice > 1 ? random_() % choice : 0;
  for (size_t i = 0; i < choice; ++i) {
    Request& request = *unsent_[(first + i) % choice];
    if (request.not_before_ns > now_ns || peers_[request.device].unanswered >= kUnansweredSegments) continue;
    if (Draw(faults_.hold)) continue;
    SendSegment(request);
    if (request.segments.empty()) std::erase(unsent_, &request);
    return true;
  }
  return false;
}

void Device::SendSegment(Request& request) {
  const uint64_t offset = request.segments.back();
  request.segments.pop_back();
  const uint64_t size = std::min(request.segment_bytes, request.length - offset);
  Packet packet;
  PacketHeader& header = packet.header;
  header.is_write = request.opcode == IBV_WC_RDMA_WRITE;
  header.has_immediate = request.has_immediate;
  header.immediate = request.immediate;
  header.to_queue_pair = request.queue_pair;
  header.from_queue_pair = request.pair->qp_base.qp_num;
  header.message = request.number;
  header.address = request.remote_address;
  header.total = request.length;
  header.offset = offset;
  header.key = request.remote_key;
  header.queue_key = request.queue_key;
  header.retries = request.pair->retries;
  if (request.is_inline) {
    packet.bytes = request.inlined;
  } else {
    packet.bytes.reserve(size);
    uint64_t begin = 0;  // of the part
    for (const ibv_sge& part : request.parts) {
      const uint64_t from = std::max(offset, begin), to = std::min(offset + size, begin + part.length);
      const auto* bytes = reinterpret_cast<const std::byte*>(part.addr);
      if (from < to) packet.bytes.insert(packet.bytes.end(), bytes + (from - begin), bytes + (to - begin));
      begin += part.length;
    }
  }
  ++request.unanswered;
  ++peers_[request.device].unanswered;
  ++statistics_.segments;
  wire_.Send(request.device, std::move(packet));
}

void Device::Forget(Request& request) {
  peers_[request.device].unanswered -= request.unanswered;
  --request.pair->outstanding;
  std::erase(unsent_, &request);
}

void Device::Finish(uint64_t number, Status status) {
  const auto found = requests_.find(number);
  Request& request = *found->second;
  Completion completion;
  completion.id = request.id;
  completion.status = status;
  completion.opcode = request.opcode;
  completion.queue_pair = request.pair->qp_base.qp_num;
  completion.bytes = static_cast<uint32_t>(request.length);
  Complete(*request.pair->send_queue, completion);
  ++statistics_.requests;
  const bool overtakes =
      std::any_of(requests_.begin(), found, [&](const auto& earlier) { return earlier.second->pair == request.pair; });
  if (overtakes) ++statistics_.overtaken;
  Forget(request);
  requests_.erase(found);
}

void Device::OnAnswer(const PacketHeader& header) {
  Peer& peer = peers_[header.from];
  peer.answered = true;
  const auto found = requests_.find(header.message);
  if (found == requests_.end() || found->second->device != header.from) return;  // it has failed already
  Request& request = *found->second;
  request.progress_ns = NowNs();
  if (header.kind == PacketHeader::Kind::kRefusal) return Finish(header.message, static_cast<Status>(header.status));
  --request.unanswered;
  --peer.unanswered;
  // Of the last segment that arrived, whichever that was: others' answers may still be on their way.
  if (header.last) Finish(header.message, Status::kOk);
}

}  // namespace jax_fabric::fake_srd
