#include "csrc/engine/domains/connectx/double/device.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "csrc/engine/domains/connectx/double/gids.h"

namespace jax_fabric::verbs_double {
namespace {

constexpr int kTickMs = 1;
constexpr int64_t kBusyNs = 20'000'000;
constexpr int64_t kStarved = 3;

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Device::Device(const DeviceModel& model, uint64_t id, const Faults& faults)
    : model_(model), id_(id), faults_(faults), random_(faults.seed + id % 97), wire_(id) {
  // As on hardware, numbers of objects are not those of earlier ones.
  next_number_ = static_cast<uint32_t>(id) & 0xfffff;
  next_key_ = static_cast<uint32_t>(id >> 20) & 0xffff;
  thread_ = std::thread([this] { Run(); });
}

Device::~Device() {
  stop_.store(true);
  wire_.Wake();
  thread_.join();
}

void Device::Run() {
  while (!stop_.load()) {
    wire_.Wait(kTickMs);
    for (Packet& packet : wire_.Receive()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      OnPacket(std::move(packet));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    KeepTime();
    wire_.Flush();
  }
}

void Device::KeepTime() {
  const int64_t now_ns = NowNs();
  if (faults_.completion_delay_us > 0) NotifyOfDelayed(now_ns);
  for (const auto& [number, pair] : pairs_) {
    if (!pair->waiting.empty()) {
      RetryWaiting(*pair);
      if (!pair->waiting.empty() && now_ns - pair->busy_ns > kBusyNs) {
        pair->busy_ns = now_ns;
        Answer(*pair, PacketHeader::Kind::kBusy);
      }
    }
    const bool unanswered =
        pair->qp_type == IBV_QPT_RC && pair->state == IBV_QPS_RTS && !pair->work.empty() && pair->timeout != 0;
    const int64_t patience_ns = (int64_t{4096} << pair->timeout) * (pair->retries + 1);
    const int64_t waited_ns = now_ns - pair->progress_ns;
    if (!unanswered || waited_ns < patience_ns) continue;
    // Devices answer in time; the thread that is one here may have to wait for a core.
    if (waited_ns < kStarved * patience_ns && wire_.Reaches(pair->device)) continue;
    const Work lost = std::move(pair->work.front());
    pair->work.pop_front();
    CompleteWork(*pair, lost, IBV_WC_RETRY_EXC_ERR);
    Fail(*pair);
  }
  if (late_.has_value()) {
    wire_.Send(late_->first, std::move(late_->second));
    late_.reset();
  }
}

int Device::Register(Memory& memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (memory.length == 0 ||
      (memory.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE)) == IBV_ACCESS_REMOTE_WRITE) {
    return EINVAL;
  }
  do {
    memory.lkey = ++next_key_ << 8 | static_cast<uint32_t>(random_() & 0xff);
  } while (memory.lkey == 0 || memory_.contains(memory.lkey));
  memory.rkey = (memory.access & IBV_ACCESS_REMOTE_WRITE) != 0 ? memory.lkey : 0;  // as rxe does
  memory_[memory.lkey] = &memory;
  ++objects_;
  return 0;
}

void Device::Deregister(Memory& memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_.erase(memory.lkey);
  --objects_;
}

const Memory* Device::FindMemory(uint32_t key, uint64_t address, uint64_t length, unsigned access) const {
  const auto found = memory_.find(key);
  if (found == memory_.end() || (found->second->access & access) != access) return nullptr;
  const auto begin = reinterpret_cast<uint64_t>(found->second->addr);
  const bool inside =
      address >= begin && length <= found->second->length && address - begin <= found->second->length - length;
  return inside ? found->second : nullptr;
}

int Device::Poll(CompletionQueue& queue, int count, ibv_wc* work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (queue.overrun) return -1;
  const int64_t now_ns = faults_.completion_delay_us > 0 ? NowNs() : 0;
  int polled = 0;
  for (; polled < count && !queue.entries.empty() && queue.entries.front().due_ns <= now_ns; ++polled) {
    work[polled] = queue.entries.front().work;
    if (Route* route = queue.entries.front().route; route != nullptr) --route->incomplete;
    queue.entries.pop_front();
  }
  return polled;
}

void Device::AddCompletionQueue(CompletionQueue& queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queues_.push_back(&queue);
  ++objects_;
}

void Device::RemoveCompletionQueue(CompletionQueue& queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase(queues_, &queue);
  --objects_;
}

int Device::Arm(CompletionQueue& queue) {
  if (queue.channel == nullptr) return EINVAL;
  const std::lock_guard<std::mutex> lock(mutex_);
  queue.armed = true;
  queue.armed_ns = NowNs();
  return 0;
}

void Device::Notify(CompletionQueue& queue) {
  if (!queue.armed) return;
  queue.armed = false;
  const uint64_t one = 1;
  if (write(queue.channel->fd, &one, sizeof(one)) != sizeof(one)) std::perror("verbs double: completion channel");
}

// Those that were there when the queue was armed, and could not be polled yet, come later than that.
void Device::NotifyOfDelayed(int64_t now_ns) {
  for (CompletionQueue* queue : queues_) {
    const auto came = [&](const CompletionQueue::Entry& entry) {
      return entry.due_ns > queue->armed_ns && entry.due_ns <= now_ns;
    };
    if (std::any_of(queue->entries.begin(), queue->entries.end(), came)) Notify(*queue);
  }
}

void Device::Complete(ibv_cq* queue, const ibv_wc& work, Route* route) {
  auto& into = static_cast<CompletionQueue&>(*queue);
  if (into.entries.size() >= static_cast<size_t>(into.cqe)) {
    if (!into.overrun) std::fprintf(stderr, "verbs double: a completion queue of %d entries is overrun\n", into.cqe);
    into.overrun = true;
    return;
  }
  int64_t due_ns = 0;
  if (faults_.completion_delay_us > 0) {
    due_ns = NowNs() + static_cast<int64_t>(random_() % faults_.completion_delay_us) * 1000;
    if (!into.entries.empty()) due_ns = std::max(due_ns, into.entries.back().due_ns);  // in their order
  }
  into.entries.push_back({work, due_ns, route});
  if (due_ns == 0) Notify(into);
  if (route != nullptr) ++route->incomplete;
}

int Device::DestroyRoute(Route* route) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (route->incomplete > 0) {
    std::fprintf(stderr, "verbs double: a route is destroyed with %u datagrams on the way\n", route->incomplete);
    return EBUSY;
  }
  --objects_;
  delete route;
  return 0;
}

void Device::CompleteWork(QueuePair& pair, const Work& work, ibv_wc_status status, Route* route) {
  if (status == IBV_WC_SUCCESS && !work.signaled) return;
  ibv_wc entry = {};
  entry.wr_id = work.id;
  entry.status = status;
  entry.opcode = work.is_write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
  entry.qp_num = pair.qp_num;
  Complete(pair.send_cq, entry, route);
}

void Device::CompleteReceive(QueuePair& pair, const Receive& receive, ibv_wc_status status,
                             const PacketHeader& header) {
  ibv_wc entry = {};
  entry.wr_id = receive.id;
  entry.status = status;
  entry.opcode = header.is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  entry.qp_num = pair.qp_num;
  entry.src_qp = header.from_queue_pair;
  entry.byte_len = static_cast<uint32_t>(header.total);
  if (header.has_immediate) {
    entry.wc_flags = IBV_WC_WITH_IMM;
    entry.imm_data = header.immediate;
  }
  Complete(pair.recv_cq, entry);
}

void Device::Fail(QueuePair& pair) {
  pair.state = IBV_QPS_ERR;
  for (const Work& work : pair.work) CompleteWork(pair, work, IBV_WC_WR_FLUSH_ERR);
  pair.work.clear();
  pair.next = 0;
  if (pair.has_receive) CompleteReceive(pair, pair.receive, IBV_WC_WR_FLUSH_ERR, {});
  pair.has_receive = false;
  for (const Receive& receive : pair.receives) CompleteReceive(pair, receive, IBV_WC_WR_FLUSH_ERR, {});
  pair.receives.clear();
  pair.waiting.clear();
}

void Device::AddQueuePair(QueuePair& pair) {
  const std::lock_guard<std::mutex> lock(mutex_);
  do {
    next_number_ = (next_number_ + 1) & 0xffffff;
  } while (next_number_ < 2 || pairs_.contains(next_number_));
  pair.qp_num = next_number_;
  pairs_[pair.qp_num] = &pair;
  ++objects_;
}

// As mlx5 does, and unlike rxe: what it has left in the queues goes with it.
void Device::RemoveQueuePair(QueuePair& pair) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pairs_.erase(pair.qp_num);
  for (ibv_cq* queue : {pair.send_cq, pair.recv_cq}) {
    std::erase_if(static_cast<CompletionQueue*>(queue)->entries, [&](const CompletionQueue::Entry& entry) {
      if (entry.work.qp_num != pair.qp_num) return false;
      if (entry.route != nullptr) --entry.route->incomplete;
      return true;
    });
  }
  --objects_;
}

int Device::Modify(QueuePair& pair, const ibv_qp_attr& attributes, int mask) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if ((mask & IBV_QP_STATE) == 0) return EINVAL;
  const ibv_qp_state to = attributes.qp_state;
  const bool datagrams = pair.qp_type == IBV_QPT_UD;
  const auto has = [mask](int all) { return (mask & all) == all; };
  if (to == IBV_QPS_ERR) {
    Fail(pair);
    return 0;
  }
  if (to == IBV_QPS_INIT && pair.state == IBV_QPS_RESET) {
    if (!has(IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS))) return EINVAL;
    if (attributes.port_num != 1) return EINVAL;
    pair.datagram_key = attributes.qkey;
    pair.access = attributes.qp_access_flags;
  } else if (to == IBV_QPS_RTR && pair.state == IBV_QPS_INIT) {
    if (!datagrams) {
      const ibv_ah_attr& route = attributes.ah_attr;
      if (!has(IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
               IBV_QP_MIN_RNR_TIMER) ||
          !route.is_global || route.grh.sgid_index == kZeroGid || attributes.path_mtu > model_.mtu) {
        return EINVAL;
      }
      pair.device = DeviceOf(route.grh.dgid);
      pair.number = attributes.dest_qp_num;
      pair.expected_packet = attributes.rq_psn;
    }
  } else if (to == IBV_QPS_RTS && pair.state == IBV_QPS_RTR) {
    if (!has(IBV_QP_SQ_PSN)) return EINVAL;
    if (!datagrams && !has(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)) {
      return EINVAL;
    }
    pair.next_packet = pair.acknowledged = attributes.sq_psn;
    pair.timeout = attributes.timeout;
    pair.retries = attributes.retry_cnt;
    pair.not_ready_retries = attributes.rnr_retry;
  } else {
    return EINVAL;
  }
  pair.state = to;
  return 0;
}

int Device::PostReceive(std::deque<Receive>& receives, size_t capacity, ibv_recv_wr* work, ibv_recv_wr** bad) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (; work != nullptr; work = work->next) {
    Receive receive{work->wr_id};
    if (work->num_sge > 0) {
      receive.address = reinterpret_cast<std::byte*>(work->sg_list[0].addr);
      receive.length = work->sg_list[0].length;
      receive.key = work->sg_list[0].lkey;
    }
    if (receives.size() >= capacity || work->num_sge > 1) {
      *bad = work;
      return receives.size() >= capacity ? ENOMEM : EINVAL;
    }
    receives.push_back(receive);
  }
  for (const auto& [number, pair] : pairs_) {
    if (!pair->waiting.empty()) RetryWaiting(*pair);
  }
  return 0;
}

int Device::PostSend(QueuePair& pair, ibv_send_wr* work, ibv_send_wr** bad) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (; work != nullptr; work = work->next) {
    const int error = pair.qp_type == IBV_QPT_UD ? PostDatagram(pair, *work) : PostOne(pair, *work);
    if (error != 0) {
      *bad = work;
      return error;
    }
  }
  return 0;
}

}  // namespace jax_fabric::verbs_double
