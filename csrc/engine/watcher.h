#ifndef JAX_FABRIC_ENGINE_WATCHER_H_
#define JAX_FABRIC_ENGINE_WATCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "csrc/engine/poller_set.h"

namespace jax_fabric {

// A 64-bit word in host memory that somebody writes: a kernel through a mapping, a NIC, another thread. A poller
// compares it with what it saw last and calls back with both; values in between may be skipped.
class Watcher {
 public:
  using Callback = std::function<void(uint64_t old_value, uint64_t new_value)>;

  // `callback` runs on the thread that polls the set. `given`: memory for the word, in which nobody stores yet.
  static std::unique_ptr<Watcher> Watch(PollerSet& set, uint64_t initial, Callback callback,
                                        std::shared_ptr<uint64_t> given = nullptr);

  // On a cache line of its own, unless it was given; lives as long as the watcher. Writers release, the poller
  // acquires: what was written before the word is visible to the callback.
  uint64_t* word_address() const;
  // The same word for those who may outlive the watcher.
  std::shared_ptr<uint64_t> word() const;

  // The callback is not called any more; a call may be running(). Idempotent.
  void Stop() { poller_->Stop(); }
  // A call of the callback has not returned. False on the thread that makes this call.
  bool running() const { return poller_->running(); }

 private:
  struct Word;
  Watcher(std::shared_ptr<Word> word, std::unique_ptr<Poller> poller)
      : word_(std::move(word)), poller_(std::move(poller)) {}

  const std::shared_ptr<Word> word_;
  const std::unique_ptr<Poller> poller_;  // waits for the callback when the watcher goes
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_WATCHER_H_
