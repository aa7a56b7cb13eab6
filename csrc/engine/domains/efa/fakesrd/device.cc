#include "csrc/engine/domains/efa/fakesrd/device.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

namespace jax_fabric::fake_srd {
namespace {

constexpr int kTickMs = 1;
constexpr int64_t kKeepTimeNs = 2'000'000;
constexpr int64_t kPatienceNs = 20'000'000;  // then it looks whether the other side is there at all
constexpr int kSegmentsAtOnce = 64;

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Device::Device(uint64_t id) : id_(id), random_(id), wire_(id) {
  // As on hardware, numbers are not those of earlier devices.
  next_queue_pair_ = static_cast<uint32_t>(id) & 0x3fff;
  thread_ = std::thread([this] { Run(); });
}

Device::~Device() {
  stop_.store(true);
  wire_.Wake();
  thread_.join();
}

void Device::SetFaults(const Faults& faults) {
  const std::lock_guard<std::mutex> lock(mutex_);
  faults_ = faults;
  random_.seed(faults.seed + id_ % 97);
}

Statistics Device::statistics() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

void Device::Run() {
  for (bool busy = false; !stop_.load();) {
    wire_.Wait(busy ? 0 : kTickMs);
    const std::lock_guard<std::mutex> lock(mutex_);
    busy = Progress();
  }
}

bool Device::Progress() {
  for (Packet& packet : wire_.Receive()) OnPacket(std::move(packet));
  const int64_t now_ns = NowNs();
  int sent = 0;
  while (sent < kSegmentsAtOnce && SendSome(now_ns)) ++sent;
  if (now_ns - kept_time_ns_ > kKeepTimeNs) {
    kept_time_ns_ = now_ns;
    KeepTime(now_ns);
  }
  wire_.Flush();
  return sent == kSegmentsAtOnce || SomeLeaveSoon(now_ns);
}

void Device::KeepTime(int64_t now_ns) {
  for (const auto& [number, pair] : pairs_) RetryWaiting(*pair, now_ns);
  std::unordered_map<uint64_t, bool> reaches;
  std::vector<uint64_t> lost;
  for (const auto& [number, request] : requests_) {
    if (request->unanswered == 0 || now_ns - request->progress_ns < kPatienceNs) continue;
    request->progress_ns = now_ns;
    const auto found = reaches.find(request->device);
    const bool there =
        found != reaches.end() ? found->second : (reaches[request->device] = wire_.Reaches(request->device));
    if (!there) lost.push_back(number);
  }
  for (const uint64_t number : lost) {
    const bool answered = peers_[requests_.at(number)->device].answered;
    Finish(number, answered ? Status::kUnresponsive : Status::kUnreachable);
  }
}

void Device::Register(Memory& memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  do {
    memory.lkey = static_cast<uint32_t>(random_() & 0x7fffffff);
  } while (memory.lkey == 0 || memory_.contains(memory.lkey));
  memory.rkey = memory.lkey;
  memory_[memory.lkey] = &memory;
}

void Device::Deregister(Memory& memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_.erase(memory.lkey);
}

Memory* Device::FindMemory(uint32_t key, uint64_t address, uint64_t length, unsigned access) const {
  const auto found = memory_.find(key);
  if (found == memory_.end() || (found->second->access & access) != access) return nullptr;
  Memory& memory = *found->second;
  const bool inside =
      address >= memory.first && length <= memory.length && address - memory.first <= memory.length - length;
  return inside ? &memory : nullptr;
}

void Device::AddRoute(Route& route) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[route.device];
  if (peer.routes++ == 0) peer.number = next_route_ = static_cast<uint16_t>((next_route_ + 1) % kUnknownRoute);
  route.number = peer.number;
}

void Device::RemoveRoute(Route& route) {
  const std::lock_guard<std::mutex> lock(mutex_);
  --peers_[route.device].routes;
}

void Device::AddQueuePair(QueuePair& pair) {
  const std::lock_guard<std::mutex> lock(mutex_);
  do {
    next_queue_pair_ = (next_queue_pair_ + 1) & 0xffff;
  } while (next_queue_pair_ == 0 || pairs_.contains(next_queue_pair_));
  pair.qp_base.qp_num = next_queue_pair_;
  pairs_[next_queue_pair_] = &pair;
}

void Device::RemoveQueuePair(QueuePair& pair) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(requests_, [&](const auto& each) {
    if (each.second->pair != &pair) return false;
    Forget(*each.second);
    return true;
  });
  pairs_.erase(pair.qp_base.qp_num);
  for (CompletionQueue* queue : {pair.send_queue, pair.receive_queue}) {
    std::erase_if(queue->entries,
                  [&](const Completion& completion) { return completion.queue_pair == pair.qp_base.qp_num; });
  }
}

int Device::Modify(QueuePair& pair, const ibv_qp_attr& attributes, int mask) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if ((mask & IBV_QP_QKEY) != 0) pair.key = attributes.qkey;
  if ((mask & IBV_QP_RNR_RETRY) != 0) pair.retries = attributes.rnr_retry;
  if ((mask & IBV_QP_STATE) == 0) return 0;
  const ibv_qp_state from = pair.qp_base.state, to = attributes.qp_state;
  const bool next = (from == IBV_QPS_RESET && to == IBV_QPS_INIT) || (from == IBV_QPS_INIT && to == IBV_QPS_RTR) ||
                    (from == IBV_QPS_RTR && to == IBV_QPS_RTS);
  if (!next && to != IBV_QPS_ERR && to != IBV_QPS_RESET) return EINVAL;
  pair.qp_base.state = to;
  if (to == IBV_QPS_ERR) Flush(pair);
  return 0;
}

void Device::Flush(QueuePair& pair) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, request] : requests_) {
    if (request->pair == &pair) numbers.push_back(number);
  }
  for (const uint64_t number : numbers) Finish(number, Status::kFlushed);
  for (const Receive& receive : pair.receives) {
    Completion completion;
    completion.id = receive.id;
    completion.status = Status::kFlushed;
    completion.opcode = IBV_WC_RECV;
    completion.queue_pair = pair.qp_base.qp_num;
    Complete(*pair.receive_queue, completion);
  }
  pair.receives.clear();
  pair.waiting.clear();
}

void Device::Complete(CompletionQueue& queue, const Completion& completion) {
  if (queue.entries.size() < static_cast<size_t>(queue.cqe)) return queue.entries.push_back(completion);
  if (!queue.overrun) std::fprintf(stderr, "fakesrd: a completion queue of %d entries is overrun\n", queue.cqe);
  queue.overrun = true;
  ++statistics_.overruns;
}

int Device::Poll(CompletionQueue& queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (queue.entries.empty()) Progress();
  if (queue.entries.empty()) return queue.overrun ? EINVAL : ENOENT;
  queue.current = queue.entries.front();
  queue.entries.pop_front();
  queue.wr_id = queue.current.id;
  queue.status = VerbsStatus(queue.current.status);
  return 0;
}

}  // namespace jax_fabric::fake_srd
