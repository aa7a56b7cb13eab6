#include "csrc/engine/watcher.h"

#include <atomic>

namespace jax_fabric {

struct Watcher::Word {
  // Alone on its line: writers on a bus and the polling thread meet here and nothing else does.
  alignas(64) uint64_t own_value = 0;
  alignas(64) uint64_t seen = 0;    // polling thread
  std::shared_ptr<uint64_t> given;  // by who made the watcher, to be used instead
  Callback callback;

  uint64_t* value() { return given == nullptr ? &own_value : given.get(); }

  bool Poll() {
    const uint64_t now = std::atomic_ref(*value()).load(std::memory_order_acquire);
    if (now == seen) return false;
    callback(std::exchange(seen, now), now);
    return true;
  }
};

std::unique_ptr<Watcher> Watcher::Watch(PollerSet& set, uint64_t initial, Callback callback,
                                        std::shared_ptr<uint64_t> given) {
  auto word = std::make_shared<Word>();
  word->given = std::move(given);
  *word->value() = word->seen = initial;
  word->callback = std::move(callback);
  auto poller = set.Add([word] { return word->Poll(); }, PollerSet::Urgency::kUrgent);
  return std::unique_ptr<Watcher>(new Watcher(std::move(word), std::move(poller)));
}

uint64_t* Watcher::word_address() const { return word_->value(); }
std::shared_ptr<uint64_t> Watcher::word() const { return {word_, word_->value()}; }

}  // namespace jax_fabric
