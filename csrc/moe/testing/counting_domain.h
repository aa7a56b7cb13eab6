// A domain whose writes are counted and go nowhere, for benchmarks of what comes before them. Everything else is that
// of another domain.
#ifndef JAX_FABRIC_MOE_TESTING_COUNTING_DOMAIN_H_
#define JAX_FABRIC_MOE_TESTING_COUNTING_DOMAIN_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/engine/testing/forwarding_domain.h"

namespace jax_fabric::moe::testing {

class CountingDomain final : public ForwardingDomain {
 public:
  // When writes were handed over, by SteadyClock.
  struct Times {
    int64_t first_ns = 0;
    int64_t last_ns = 0;
  };

  // A burst is that many writes; each write completes, and after the last one as many immediates come as if from peers.
  CountingDomain(std::unique_ptr<Domain> domain, uint32_t burst) : ForwardingDomain(std::move(domain)), burst_(burst) {}

  // Before the first write: what comes after burst n, counted from 1, is `immediates[n % 2]`.
  void AnswerBursts(std::array<uint32_t, 2> immediates) {
    immediates_ = immediates;
    // release, with the acquire in PostWrite.
    answers_.store(true, std::memory_order_release);
  }
  // Bursts that are complete; `times()` of the last of them may be read then.
  uint64_t bursts() const { return bursts_.load(std::memory_order_acquire); }
  const Times& times() const { return times_; }

  PostResult PostWrite(const WriteRequest& request) override {
    // Only where it is asked for: reading the clock takes about as long as posting.
    if (writes_ == 0) times_.first_ns = SteadyClock::Get().NowNs();
    completions_.push_back({.kind = CompletionKind::kWrite, .peer = request.peer, .context = request.context});
    if (++writes_ < burst_) return PostResult::kPosted;
    times_.last_ns = SteadyClock::Get().NowNs();
    const uint64_t burst = bursts_.load(std::memory_order_relaxed) + 1;
    if (answers_.load(std::memory_order_acquire)) {
      completions_.push_back(
          {.kind = CompletionKind::kImmediate, .immediate = immediates_[burst % 2], .count = burst_});
    }
    writes_ = 0;
    // release, with bursts().
    bursts_.store(burst, std::memory_order_release);
    return PostResult::kPosted;
  }
  size_t Poll(std::span<Completion> completions) override {
    size_t count = 0;
    // A NIC has one queue however many peers it has, and the local domain a mailbox for each: rarely, once connected.
    const bool looks = !answers_.load(std::memory_order_relaxed) || ++polls_ % 1024 == 0;
    for (; count < completions.size() && polled_ < completions_.size(); ++count) {
      completions[count] = completions_[polled_++];
    }
    if (polled_ == completions_.size()) completions_.clear(), polled_ = 0;
    return looks ? count + domain().Poll(completions.subspan(count)) : count;
  }
  bool ArmWait() override { return completions_.empty() && domain().ArmWait(); }

 private:
  const uint32_t burst_;
  std::array<uint32_t, 2> immediates_{};
  std::atomic<bool> answers_{false};
  // On a line of its own: others look at it again and again.
  alignas(64) std::atomic<uint64_t> bursts_{0};
  // Of the driving thread.
  alignas(64) uint32_t writes_ = 0;
  uint32_t polls_ = 0;
  Times times_;
  std::vector<Completion> completions_;  // to be polled from polled_ on
  size_t polled_ = 0;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_COUNTING_DOMAIN_H_
