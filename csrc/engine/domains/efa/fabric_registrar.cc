#include "csrc/engine/domains/efa/fabric_registrar.h"

#include "csrc/engine/domains/nic/cuda_memory.h"

namespace jax_fabric::efa {

FabricRegistrar::FabricRegistrar(FabricEndpoint& endpoint, uint64_t incarnation, bool device_memory)
    : endpoint_(endpoint),
      device_memory_(device_memory),
      virtual_addresses_(endpoint.Needs(FI_MR_VIRT_ADDR)),
      // Not where another incarnation began: its keys are refused by their tags already, this keeps them apart as well.
      next_key_(static_cast<uint32_t>(incarnation) & 0x3fffffff) {}

Result<nic::Registration> FabricRegistrar::Map(void* address, uint64_t length, MemoryKind kind, Access access) {
  const bool chosen = !endpoint_.Needs(FI_MR_PROV_KEY);
  if (chosen && next_key_ == 0xffffffff) return MakeError(ErrorCode::kResourceExhausted, "all keys are used up");
  iovec range{address, length};
  fi_mr_attr attributes = {};
  attributes.mr_iov = &range;
  attributes.iov_count = 1;
  attributes.access = FI_SEND | FI_RECV | FI_WRITE | (access == Access::kRemoteWrite ? FI_REMOTE_WRITE : 0);
  attributes.requested_key = chosen ? ++next_key_ : 0;
  if (kind == MemoryKind::kCuda) {
    if (!device_memory_) {
      return MakeError(ErrorCode::kFailedPrecondition, "device memory needs a domain made with device_memory");
    }
    // The provider exports it by itself. No machine with CUDA and such a NIC was at hand (docs/nics.md).
    JF_ASSIGN_OR_RETURN(attributes.device.cuda, nic::CudaDeviceOf(address));
    attributes.iface = FI_HMEM_CUDA;
  }
  fid_mr* mr = nullptr;
  if (const int error = fi_mr_regattr(endpoint_.domain(), &attributes, 0, &mr); error != 0) {
    return MakeError(ErrorCode::kResourceExhausted, "{} bytes {}at {} cannot be registered: {}{}", length,
                     kind == MemoryKind::kCuda ? "of GPU memory " : "", address, endpoint_.library().Words(error),
                     kind == MemoryKind::kCuda ? "" : ". Is the limit of locked memory high enough (ulimit -l)?");
  }
  return nic::Registration{std::shared_ptr<void>(mr, [](void* each) { FidCloser()(static_cast<fid_mr*>(each)); }),
                           fi_mr_key(mr), fi_mr_desc(mr), 0};
}

}  // namespace jax_fabric::efa
