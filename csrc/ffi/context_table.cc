#include "csrc/ffi/context_table.h"

#include <memory>
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
  std::lock_guard<std::mutex> lock(mutex_);
  if (LocalRank* known = Find(handle, device); known != nullptr) {
    if (known->closed() && known->completion() == completion) {  // of the same engine
      known->Reopen(context);
      return {};
    }
    return MakeError(ErrorCode::kAlreadyExists, "context handle {} has, or had in another fabric, a rank on device {}",
                     handle, device);
  }
  return ranks_.Add(handle, std::make_unique<LocalRank>(device, context, completion));
}

const moe::RankContext* ContextTable::Predecessor(int64_t handle, int32_t device, const Executor* completion) const {
  const LocalRank* known = Find(handle, device);
  return known != nullptr && known->closed() && known->completion() == completion ? known->last() : nullptr;
}

void ContextTable::Close(int64_t handle) {
  for (LocalRank* rank : ranks_.EntriesOf(handle)) rank->Close();
}

}  // namespace jax_fabric::ffi_layer
