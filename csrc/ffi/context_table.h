// The local ranks of expert-parallel contexts, by handle and device.
#ifndef JAX_FABRIC_FFI_CONTEXT_TABLE_H_
#define JAX_FABRIC_FFI_CONTEXT_TABLE_H_

#include <atomic>
#include <cstdint>
#include <mutex>

#include "csrc/base/executor.h"
#include "csrc/base/status.h"
#include "csrc/ffi/handle_table.h"
#include "csrc/moe/rank_context.h"

namespace jax_fabric::ffi_layer {

// One local rank of one expert-parallel context. Never freed (a few words each), so that a handler that races with
// close finds it closed, not gone.
class LocalRank {
 public:
  LocalRank(int32_t device, moe::RankContext* context, Executor* completion)
      : device_(device), platform_(context->platform()), completion_(completion), context_(context), last_(context) {}

  int32_t device() const { return device_; }
  // Of all contexts that take this place.
  moe::Platform platform() const { return platform_; }
  Executor* completion() const { return completion_; }

  // The context, kept alive until Leave; null after Close (then Leave is not called).
  moe::RankContext* Enter();
  void Leave() { handlers_.fetch_sub(1, std::memory_order_release); }
  // Returns when no handler is inside any more; handlers never block.
  void Close();
  // After Close: another context takes the place of the one that was here. seq_cst, with the load in Enter.
  void Reopen(moe::RankContext* context) {
    last_.store(context, std::memory_order_release);
    context_.store(context, std::memory_order_seq_cst);
  }
  // The context that is or was here. Only who knows that it is one that Retire keeps may look at it after Close.
  moe::RankContext* last() const { return last_.load(std::memory_order_acquire); }
  // For who may reopen it, which nobody else does meanwhile; relaxed, as it reads nothing behind the pointer.
  bool closed() const { return context_.load(std::memory_order_relaxed) == nullptr; }

 private:
  const int32_t device_;
  const moe::Platform platform_;
  Executor* const completion_;
  std::atomic<moe::RankContext*> context_;
  std::atomic<moe::RankContext*> last_;  // release in Reopen, acquire in last()
  std::atomic<int64_t> handlers_{0};
};

// Leaves when it goes out of scope.
class Visit {
 public:
  explicit Visit(LocalRank* rank) : rank_(rank), context_(rank->Enter()) {}
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  ~Visit() {
    if (context_ != nullptr) rank_->Leave();
  }
  moe::RankContext* context() const { return context_; }
  Executor* completion() const { return rank_->completion(); }

 private:
  LocalRank* const rank_;
  moe::RankContext* const context_;
};

class ContextTable {
 public:
  static ContextTable& Get();

  // `completion` outlives every call. The pair (handle, device) is new, or was closed and comes with the same
  // `completion`.
  Status Add(int64_t handle, int32_t device, moe::RankContext* context, Executor* completion);
  // The context whose place one with this handle, device and `completion` would take, or null. On the host it is gone;
  // only who knows that Retire has kept it may look at it.
  const moe::RankContext* Predecessor(int64_t handle, int32_t device, const Executor* completion) const;
  // Lock-free. Null: no such handle, or the device is not one of its ranks here.
  LocalRank* Find(int64_t handle, int32_t device) const { return ranks_.Find(handle, device); }
  void Close(int64_t handle);

 private:
  std::mutex mutex_;  // of writers
  HandleTable<LocalRank> ranks_;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_CONTEXT_TABLE_H_
