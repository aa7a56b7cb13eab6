#ifndef JAX_FABRIC_ENGINE_WATCHER_H_
#define JAX_FABRIC_ENGINE_WATCHER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"

namespace jax_fabric {

class WatcherSet;

// A 64-bit word in host memory that somebody writes: a kernel through a mapping, a NIC, another thread. A poller
// compares it with what it saw last and calls back with both; values in between may be skipped.
class Watcher {
 public:
  using Callback = std::function<void(uint64_t old_value, uint64_t new_value)>;

  // Waits while running().
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // On a cache line of its own, unless Add was given it; lives as long as the watcher. Writers release, the poller
  // acquires: what was written before the word is visible to the callback.
  uint64_t* word_address() const;
  // The same word for those who may outlive the watcher.
  std::shared_ptr<uint64_t> word() const;

  // The callback is not called any more; a call may be running(). Idempotent.
  void Stop();
  // A call of the callback has not returned. False on the thread that makes this call.
  bool running() const;

 private:
  friend class WatcherSet;
  struct Word;
  Watcher(WatcherSet* set, std::shared_ptr<Word> word) : set_(set), word_(std::move(word)) {}

  WatcherSet* const set_;
  const std::shared_ptr<Word> word_;
};

// All watchers that one thread polls. Outlives them.
class WatcherSet {
 public:
  WatcherSet() = default;
  WatcherSet(const WatcherSet&) = delete;
  WatcherSet& operator=(const WatcherSet&) = delete;

  // Any thread. `callback` runs on the polling thread. `given`: memory for the word, in which
  // nobody stores yet.
  std::unique_ptr<Watcher> Add(uint64_t initial, Watcher::Callback callback, std::shared_ptr<uint64_t> given = nullptr);

  // By one thread at a time: looks at every word once. Returns whether any had changed. No lock is held over callbacks.
  bool Poll();
  size_t size() const { return size_.load(std::memory_order_relaxed); }  // a hint for idling

 private:
  friend class Watcher;
  using List = std::vector<std::shared_ptr<Watcher::Word>>;

  void Remove(Watcher::Word& word);

  std::mutex mutex_;  // of changes
  List words_;
  std::atomic<size_t> size_{0};
  std::atomic<uint64_t> version_{0};  // release by whoever changes words_, acquire in Poll
  // Of the polling thread: its copy of words_.
  List polled_;
  uint64_t polled_version_ = 0;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_WATCHER_H_
