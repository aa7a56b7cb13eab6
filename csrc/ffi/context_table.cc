#include "csrc/ffi/context_table.h"

#include <thread>

namespace jax_fabric::ffi_layer {

moe::RankContext* LocalRank::Enter() {
  // seq_cst here and in Close: either Close sees this handler counted, or the handler sees the context gone.
  handlers_.fetch_add(1, std::memory_order_seq_cst);
  moe::RankContext* context = context_.load(std::memory_order_seq_cst);
  if (context == nullptr) Leave();
  return context;
}

void LocalRank::Close() {
  context_.store(nullptr, std::memory_order_seq_cst);
  while (handlers_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

ContextTable& ContextTable::Get() {
  // Leaked on purpose: handlers may run until the process is gone.
  static auto* table = new ContextTable;
  return *table;
}

Status ContextTable::Add(int64_t handle, int32_t device, moe::RankContext* context, Executor* completion) {
  if (handle < 0 || handle >= kMaxContexts) {
    return MakeError(ErrorCode::kResourceExhausted, "context handle {}: a process can make {} expert-parallel contexts",
                     handle, kMaxContexts);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (LocalRank* known = Find(handle, device); known != nullptr) {
    if (known->closed() && known->completion() == completion) {  // of the same engine
      known->Reopen(context);
      return {};
    }
    return MakeError(ErrorCode::kAlreadyExists, "context handle {} has, or had in another fabric, a rank on device {}",
                     handle, device);
  }
  const auto* before = table_[handle].load(std::memory_order_relaxed);
  auto after = std::make_unique<std::vector<LocalRank*>>();
  if (before != nullptr) *after = *before;
  ranks_.push_back(std::make_unique<LocalRank>(device, context, completion));
  after->push_back(ranks_.back().get());
  // release, with the acquire in Find.
  table_[handle].store(after.get(), std::memory_order_release);
  versions_.push_back(std::move(after));
  return {};
}

LocalRank* ContextTable::Find(int64_t handle, int32_t device) const {
  if (handle < 0 || handle >= kMaxContexts) return nullptr;
  const auto* ranks = table_[handle].load(std::memory_order_acquire);
  if (ranks == nullptr) return nullptr;
  for (LocalRank* rank : *ranks) {
    if (rank->device() == device) return rank;
  }
  return nullptr;
}

void ContextTable::Close(int64_t handle) {
  if (handle < 0 || handle >= kMaxContexts) return;
  const auto* ranks = table_[handle].load(std::memory_order_acquire);
  if (ranks == nullptr) return;
  for (LocalRank* rank : *ranks) rank->Close();
}

}  // namespace jax_fabric::ffi_layer
