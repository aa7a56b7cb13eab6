#ifndef JAX_FABRIC_ENGINE_POLLER_SET_H_
#define JAX_FABRIC_ENGINE_POLLER_SET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace jax_fabric {

class PollerSet;

// Something that one thread looks at again and again: memory that a device writes, say.
class Poller {
 public:
  // Waits while running().
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // It is not polled any more; a call may be running(). Idempotent, any thread.
  void Stop();
  // A call has not returned. False on the thread that makes this call.
  bool running() const;

 private:
  friend class PollerSet;
  struct Entry;
  Poller(PollerSet* set, std::shared_ptr<Entry> entry) : set_(set), entry_(std::move(entry)) {}

  PollerSet* const set_;
  const std::shared_ptr<Entry> entry_;
};

// All that one thread looks at. Outlives the pollers.
class PollerSet {
 public:
  enum class Urgency : uint8_t {
    kRelaxed,  // where nothing happens, it is looked at every 50 us
    kUrgent,   // somebody waits for what the poller does
  };

  PollerSet() = default;
  PollerSet(const PollerSet&) = delete;
  PollerSet& operator=(const PollerSet&) = delete;

  // Any thread. `poll` runs on the polling thread, and returns whether there was something to do.
  std::unique_ptr<Poller> Add(std::function<bool()> poll, Urgency urgency);

  // By one thread at a time: calls each once. Returns whether any had something to do. No lock is held meanwhile.
  bool Poll();
  // Of both: sequentially consistent, for threads that want to sleep (see Waker).
  size_t size() const { return size_.load(std::memory_order_seq_cst); }
  bool urgent() const { return urgent_.load(std::memory_order_seq_cst) > 0; }

 private:
  friend class Poller;
  using List = std::vector<std::shared_ptr<Poller::Entry>>;

  void Remove(Poller::Entry& entry);

  std::mutex mutex_;  // of changes
  List entries_;
  std::atomic<size_t> size_{0};
  std::atomic<size_t> urgent_{0};
  std::atomic<uint64_t> version_{0};  // release by whoever changes entries_, acquire in Poll
  // Of the polling thread: its copy of entries_.
  List polled_;
  uint64_t polled_version_ = 0;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_POLLER_SET_H_
