#include "csrc/engine/domains/connectx/verbs_registrar.h"

#include <unistd.h>

#include <cerrno>

namespace jax_fabric::connectx {
namespace {

// NVIDIA's older way: a kernel module that finds the GPU's pages behind the address of an ordinary registration.
constexpr const char* kPeerMemoryModule = "/sys/module/nvidia_peermem";

}  // namespace

Result<nic::Registration> VerbsRegistrar::Map(void* address, uint64_t length, MemoryKind kind, Access access) {
  if (length > max_bytes_) {
    return MakeError(ErrorCode::kInvalidArgument, "a registration of {} bytes with {}: at most {} at once", length,
                     device_.name(), max_bytes_);
  }
  const unsigned flags = access == Access::kRemoteWrite ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
  ibv_mr* mr = nullptr;
  if (kind == MemoryKind::kCuda) {
    JF_ASSIGN_OR_RETURN(mr, MapDevice(address, length, flags));
  } else {
    int error = 0;
    mr = MapHost(address, length, flags, error);
    if (mr == nullptr) {
      return MakeError(ErrorCode::kResourceExhausted,
                       "{} bytes at {} cannot be registered with {}: {}. Is the limit of locked memory high enough "
                       "(ulimit -l)?",
                       length, address, device_.name(), ErrnoWords(error));
    }
  }
  const Verbs& verbs = device_.verbs();
  return nic::Registration{
      std::shared_ptr<void>(mr, [&verbs](void* each) { verbs.ibv_dereg_mr(static_cast<ibv_mr*>(each)); }), mr->rkey,
      nullptr, mr->lkey};
}

ibv_mr* VerbsRegistrar::MapHost(void* address, uint64_t length, unsigned flags, int& error) const {
  const Verbs& verbs = device_.verbs();
  // Payloads may pass each other on the bus; an immediate's completion passes none. Where the device refuses it,
  // without.
  ibv_mr* mr = verbs.ibv_reg_mr_iova2(device_.pd(), address, length, reinterpret_cast<uintptr_t>(address),
                                      flags | IBV_ACCESS_RELAXED_ORDERING);
  if (mr == nullptr) mr = (verbs.ibv_reg_mr)(device_.pd(), address, length, static_cast<int>(flags));
  if (mr == nullptr) error = errno;
  return mr;
}

Result<ibv_mr*> VerbsRegistrar::MapDevice(void* address, uint64_t length, unsigned flags) const {
  const Verbs& verbs = device_.verbs();
  auto exported = exporter_(address, length);
  std::string why;
  if (!exported.has_value()) {
    why = exported.error().message;
  } else if (verbs.ibv_reg_dmabuf_mr == nullptr) {
    why = "this libibverbs registers no dma-buf: install rdma-core 34 or newer";
  } else {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (const unsigned relaxed : {unsigned{IBV_ACCESS_RELAXED_ORDERING}, 0u}) {
      ibv_mr* mr = verbs.ibv_reg_dmabuf_mr(device_.pd(), exported->offset, length, at, exported->fd.get(),
                                           static_cast<int>(flags | relaxed));
      if (mr != nullptr) return mr;
    }
    why = fmt::format("{} refuses the dma-buf: {}", device_.name(), ErrnoWords(errno));
  }
  if (access(kPeerMemoryModule, F_OK) == 0) {
    int error = 0;
    if (ibv_mr* mr = MapHost(address, length, flags, error); mr != nullptr) return mr;
    why += fmt::format("; by nvidia_peermem: {}", ErrnoWords(error));
  }
  return MakeError(
      ErrorCode::kUnavailable,
      "{} bytes of GPU memory at {} cannot be registered with {}: {}. The NIC's driver has to take dma-bufs "
      "(Linux 5.12 or newer), or the module nvidia_peermem has to be loaded (modprobe nvidia-peermem)",
      length, address, device_.name(), why);
}

}  // namespace jax_fabric::connectx
