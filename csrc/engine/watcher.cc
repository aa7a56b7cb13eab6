#include "csrc/engine/watcher.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace jax_fabric {

struct Watcher::Word {
  // Alone on its line: writers on a bus and the polling thread meet here and nothing else does.
  alignas(64) uint64_t own_value = 0;
  alignas(64) uint64_t seen = 0;    // polling thread
  std::shared_ptr<uint64_t> given;  // by who made the watcher, to be used instead
  Callback callback;
  // Removal and the polling thread: `removed` is set by the one, then looked at by the other after it has set
  // `running`, and the other way round; sequentially consistent, so that never both miss each other.
  std::atomic<bool> removed{false};
  std::atomic<bool> running{false};
  std::atomic<std::thread::id> runner{};  // relaxed: a thread asks only whether it is itself

  uint64_t* value() { return given == nullptr ? &own_value : given.get(); }
};

Watcher::~Watcher() {
  Stop();
  // Waits for user code and for nothing else; there is no deadline that would make returning earlier safe.
  while (running()) std::this_thread::yield();
}

void Watcher::Stop() { set_->Remove(*word_); }

bool Watcher::running() const {
  return word_->running.load(std::memory_order_seq_cst) &&
         word_->runner.load(std::memory_order_relaxed) != std::this_thread::get_id();
}

uint64_t* Watcher::word_address() const { return word_->value(); }
std::shared_ptr<uint64_t> Watcher::word() const { return {word_, word_->value()}; }

std::unique_ptr<Watcher> WatcherSet::Add(uint64_t initial, Watcher::Callback callback,
                                         std::shared_ptr<uint64_t> given) {
  auto word = std::make_shared<Watcher::Word>();
  word->given = std::move(given);
  *word->value() = word->seen = initial;
  word->callback = std::move(callback);
  std::lock_guard lock(mutex_);
  words_.push_back(word);
  size_.store(words_.size(), std::memory_order_relaxed);
  version_.fetch_add(1, std::memory_order_release);
  return std::unique_ptr<Watcher>(new Watcher(this, std::move(word)));
}

void WatcherSet::Remove(Watcher::Word& word) {
  if (word.removed.exchange(true, std::memory_order_seq_cst)) return;
  std::lock_guard lock(mutex_);
  std::erase_if(words_, [&](const auto& other) { return other.get() == &word; });
  size_.store(words_.size(), std::memory_order_relaxed);
  version_.fetch_add(1, std::memory_order_release);
}

bool WatcherSet::Poll() {
  if (version_.load(std::memory_order_acquire) != polled_version_) {
    List words;
    {
      std::lock_guard lock(mutex_);
      polled_version_ = version_.load(std::memory_order_relaxed);
      words = words_;
    }
    // Whatever was removed goes now, without the lock: a callback's destructor may wait for a lock of the user's (the
    // GIL) that somebody holds who waits for ours.
    polled_.swap(words);
  }
  bool any = false;
  for (const auto& word : polled_) {
    const uint64_t value = std::atomic_ref(*word->value()).load(std::memory_order_acquire);
    if (value == word->seen) continue;
    any = true;
    word->running.store(true, std::memory_order_seq_cst);
    if (!word->removed.load(std::memory_order_seq_cst)) {
      word->runner.store(std::this_thread::get_id(), std::memory_order_relaxed);
      word->callback(std::exchange(word->seen, value), value);
      word->runner.store(std::thread::id(), std::memory_order_relaxed);
    }
    word->running.store(false, std::memory_order_seq_cst);
  }
  return any;
}

}  // namespace jax_fabric
