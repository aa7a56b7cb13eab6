#include "csrc/engine/domains/connectx/verbs_registrar.h"

#include <cerrno>

namespace jax_fabric::connectx {

Result<nic::Registration> VerbsRegistrar::Map(void* address, uint64_t length, MemoryKind kind, Access access) {
  if (kind != MemoryKind::kHost) {
    return MakeError(ErrorCode::kUnimplemented,
                     "memory of CUDA devices cannot be registered with {} yet: use host "
                     "memory",
                     device_.name());
  }
  if (length > max_bytes_) {
    return MakeError(ErrorCode::kInvalidArgument, "a registration of {} bytes with {}: at most {} at once", length,
                     device_.name(), max_bytes_);
  }
  const Verbs& verbs = device_.verbs();
  const unsigned flags = access == Access::kRemoteWrite ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
  ibv_mr* mr = nullptr;
  if (relaxed_ordering_) {
    mr = verbs.ibv_reg_mr_iova2(device_.pd(), address, length, reinterpret_cast<uintptr_t>(address),
                                flags | IBV_ACCESS_RELAXED_ORDERING);
  }
  if (mr == nullptr) {
    mr = (verbs.ibv_reg_mr)(device_.pd(), address, length, static_cast<int>(flags));
    if (mr == nullptr) {
      return MakeError(ErrorCode::kResourceExhausted,
                       "{} bytes at {} cannot be registered with {}: {}. Is the limit of locked memory high enough "
                       "(ulimit -l)?",
                       length, address, device_.name(), ErrnoWords(errno));
    }
    relaxed_ordering_ = false;
  }
  return nic::Registration{
      std::shared_ptr<void>(mr, [&verbs](void* each) { verbs.ibv_dereg_mr(static_cast<ibv_mr*>(each)); }), mr->rkey,
      nullptr, mr->lkey};
}

}  // namespace jax_fabric::connectx
