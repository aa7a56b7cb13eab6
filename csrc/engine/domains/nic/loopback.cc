#include "csrc/engine/domains/nic/loopback.h"

namespace jax_fabric::nic {

const char* Loopback::Post(const WriteRequest& request, uint64_t incarnation) {
  LoopbackWrite write;
  write.peer = request.peer;
  write.context = request.context;
  write.source = static_cast<const std::byte*>(request.source);
  write.length = request.length;
  write.immediate = request.immediate;
  uint64_t provider_key = 0;
  if (!OpenRemoteKey(request.remote_key, incarnation, provider_key)) {
    return "the remote key is none that this domain gives for writes";
  }
  const char* why = nullptr;
  write.target_region = memory_.HoldTarget(provider_key, request.remote_address, request.length, why);
  if (write.target_region == nullptr) return why;
  if (request.length > 0) {
    write.source_region = memory_.Hold(request.local_key, request.source, request.length, why);
    const bool on_host = write.source_region != nullptr && write.source_region->kind == MemoryKind::kHost &&
                         write.target_region->kind == MemoryKind::kHost;
    if (!on_host) {
      if (write.source_region != nullptr) {
        why = "memory of GPUs is copied by kernels, not by its own domain";
        memory_.Release(*write.source_region);
      }
      memory_.Release(*write.target_region);
      return why;
    }
  }
  write.target = memory_.Target(*write.target_region, request.remote_address);
  writes_.push_back(write);
  return nullptr;
}

}  // namespace jax_fabric::nic
