#include "csrc/engine/domains/connectx/buffer_pool.h"

#include <cerrno>
#include <utility>

namespace jax_fabric::connectx {

Result<uint32_t> BufferPool::Take() {
  if (free_.empty()) {
    JF_RETURN_IF_ERROR(Grow());
  }
  const uint32_t buffer = free_.back();
  free_.pop_back();
  return buffer;
}

Status BufferPool::Grow() {
  const auto first = static_cast<uint32_t>(chunks_.size()) * kPerChunk;
  if (first >= most_) return MakeError(ErrorCode::kResourceExhausted, "all {} buffers are in use", first);
  const size_t size = kPerChunk * bytes_;
  auto memory = std::make_unique<std::byte[]>(size);
  const Verbs& verbs = device_.verbs();
  Owned<ibv_mr> mr((verbs.ibv_reg_mr)(device_.pd(), memory.get(), size, IBV_ACCESS_LOCAL_WRITE), verbs.ibv_dereg_mr);
  if (mr == nullptr) {
    return MakeError(ErrorCode::kResourceExhausted,
                     "{} bytes of message buffers cannot be registered with {}: {}. Is the limit of locked memory high "
                     "enough (ulimit -l)?",
                     size, device_.name(), ErrnoWords(errno));
  }
  chunks_.push_back({std::move(memory), std::move(mr)});
  free_.reserve(chunks_.size() * kPerChunk);
  for (uint32_t i = kPerChunk; i-- > 0;) free_.push_back(first + i);
  return {};
}

}  // namespace jax_fabric::connectx
