// The line by which the host tells the kernels of a channel that messages have come, and that nobody waits any more.
#ifndef JAX_FABRIC_MOE_HOST_LINE_H_
#define JAX_FABRIC_MOE_HOST_LINE_H_

#include <atomic>
#include <cstdint>

#include "csrc/kernels/signals.h"

namespace jax_fabric::moe {

class HostLine {
 public:
  using Words = kernels::ChannelSignals::HostLine;

  // `on_device`: the words are in memory of the device, which the host has mapped: its stores there are combined, and
  // take no part in the order of others. Else they are in memory of the host, which the device has mapped.
  explicit HostLine(Words* words, bool on_device = false) : words_(words), on_device_(on_device) {}

  // release, with the acquire of the waiting kernel: what has come is there when it sees this.
  void SetDone(int64_t sequence) const {
    Drain();
    std::atomic_ref(words_->done).store(sequence, std::memory_order_release);
    Drain();
  }
  // Nothing has come, and whoever waits may; nobody does.
  void Clear() const {
    std::atomic_ref(words_->done).store(0, std::memory_order_relaxed);
    std::atomic_ref(words_->stop).store(0, std::memory_order_relaxed);
    Drain();
  }
  // A volatile read by waiting kernels, which leave. Any thread.
  void SetStop() const {
    std::atomic_ref(words_->stop).store(1, std::memory_order_relaxed);
    Drain();
  }

 private:
  // All stores up to here are on their way before those that follow.
  void Drain() const {
    if (!on_device_) return;
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#elif defined(__aarch64__)
    asm volatile("dsb st" ::: "memory");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }

  Words* words_;
  bool on_device_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_HOST_LINE_H_
