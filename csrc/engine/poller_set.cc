#include "csrc/engine/poller_set.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace jax_fabric {

struct Poller::Entry {
  std::function<bool()> poll;
  bool urgent = false;
  // Removal and the polling thread: `removed` is set by the one, then looked at by the other after it has set
  // `running`, and the other way round; sequentially consistent, so that never both miss each other.
  std::atomic<bool> removed{false};
  std::atomic<bool> running{false};
  std::atomic<std::thread::id> runner{};  // relaxed: a thread asks only whether it is itself
};

Poller::~Poller() {
  Stop();
  // Waits for `poll` and for nothing else; there is no deadline that would make returning earlier safe.
  while (running()) std::this_thread::yield();
}

void Poller::Stop() { set_->Remove(*entry_); }

bool Poller::running() const {
  return entry_->running.load(std::memory_order_seq_cst) &&
         entry_->runner.load(std::memory_order_relaxed) != std::this_thread::get_id();
}

std::unique_ptr<Poller> PollerSet::Add(std::function<bool()> poll, Urgency urgency) {
  auto entry = std::make_shared<Poller::Entry>();
  entry->poll = std::move(poll);
  entry->urgent = urgency == Urgency::kUrgent;
  std::lock_guard lock(mutex_);
  entries_.push_back(entry);
  version_.fetch_add(1, std::memory_order_release);
  size_.store(entries_.size(), std::memory_order_seq_cst);
  urgent_.fetch_add(entry->urgent ? 1 : 0, std::memory_order_seq_cst);
  return std::unique_ptr<Poller>(new Poller(this, std::move(entry)));
}

void PollerSet::Remove(Poller::Entry& entry) {
  if (entry.removed.exchange(true, std::memory_order_seq_cst)) return;
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& other) { return other.get() == &entry; });
  version_.fetch_add(1, std::memory_order_release);
  size_.store(entries_.size(), std::memory_order_seq_cst);
  urgent_.fetch_sub(entry.urgent ? 1 : 0, std::memory_order_seq_cst);
}

bool PollerSet::Poll() {
  if (version_.load(std::memory_order_acquire) != polled_version_) {
    List entries;
    {
      std::lock_guard lock(mutex_);
      polled_version_ = version_.load(std::memory_order_relaxed);
      entries = entries_;
    }
    // Whatever was removed goes now, without the lock: the destructor of what it calls may wait for a lock of the
    // user's (the GIL) that somebody holds who waits for ours.
    polled_.swap(entries);
  }
  bool any = false;
  for (const auto& entry : polled_) {
    // Before `running`, for whoever reads it there.
    entry->runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
    entry->running.store(true, std::memory_order_seq_cst);
    if (!entry->removed.load(std::memory_order_seq_cst)) any |= entry->poll();
    entry->running.store(false, std::memory_order_seq_cst);
  }
  return any;
}

}  // namespace jax_fabric
