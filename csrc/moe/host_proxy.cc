#include "csrc/moe/host_proxy.h"

#include <algorithm>
#include <chrono>

#include "csrc/base/clock.h"
#include "csrc/base/thread.h"

namespace jax_fabric::moe {
namespace {

// Where no kernel waits for this thread, and for those who want to sleep.
constexpr auto kPause = std::chrono::microseconds(50);
constexpr int64_t kLongIdleUs = 1'000'000;

}  // namespace

Result<std::unique_ptr<HostProxy>> HostProxy::Start(const std::string& name, IdlePolicy idle) {
  std::unique_ptr<HostProxy> proxy(new HostProxy(idle));
  JF_ASSIGN_OR_RETURN(proxy->thread_, StartThread(name, [self = proxy.get()] { self->Run(); }));
  return proxy;
}

HostProxy::HostProxy(IdlePolicy idle) : idle_(idle), channels_(nullptr), owned_(std::make_unique<List>()) {
  channels_.store(owned_.get(), std::memory_order_release);
}

HostProxy::~HostProxy() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void HostProxy::Run() {
  int64_t busy_ns = SteadyClock::Get().NowNs();
  while (!stop_.load(std::memory_order_relaxed)) {
    sweeps_.fetch_add(1, std::memory_order_seq_cst);
    const List& channels = *channels_.load(std::memory_order_seq_cst);
    bool busy = false, urgent = watchers_.size() > 0;
    for (ProxiedChannel* channel : channels) {
      busy = channel->Poll() || busy;
      urgent = urgent || channel->urgent();
    }
    busy = watchers_.Poll() || busy;
    const int64_t now_ns = SteadyClock::Get().NowNs();
    if (busy) {
      busy_ns = now_ns;
    } else {
      Idle(urgent, (now_ns - busy_ns) / 1000);
    }
  }
}

void HostProxy::Idle(bool urgent, int64_t idle_us) {
  const bool pauses = idle_.mode == IdleMode::kSleep || (idle_.mode != IdleMode::kSpin && idle_us > kLongIdleUs);
  if (!urgent || pauses) {
    std::this_thread::sleep_for(kPause);
  } else if (idle_.mode != IdleMode::kSpin && idle_us > idle_.spin_us) {
    std::this_thread::yield();
  }
}

void HostProxy::Change(const std::function<void(List&)>& change) {
  const std::lock_guard lock(mutex_);
  auto list = std::make_unique<List>(*owned_);
  change(*list);
  // seq_cst, with Run: a sweep that begins after this sees the new list.
  channels_.store(list.get(), std::memory_order_seq_cst);
  const uint64_t seen = sweeps_.load(std::memory_order_seq_cst);
  while (sweeps_.load(std::memory_order_seq_cst) < seen + 2) std::this_thread::yield();
  owned_ = std::move(list);
}

void HostProxy::Add(ProxiedChannel* channel) {
  Change([channel](List& list) { list.push_back(channel); });
}

void HostProxy::Remove(ProxiedChannel* channel) {
  Change([channel](List& list) { list.erase(std::remove(list.begin(), list.end(), channel), list.end()); });
}

}  // namespace jax_fabric::moe
