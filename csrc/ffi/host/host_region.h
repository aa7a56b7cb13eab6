#ifndef JAX_FABRIC_FFI_HOST_HOST_REGION_H_
#define JAX_FABRIC_FFI_HOST_HOST_REGION_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>

#include "csrc/base/executor.h"
#include "csrc/base/status.h"
#include "csrc/engine/memory.h"
#include "csrc/ffi/host/host_engine.h"

namespace jax_fabric::ffi_layer {

// Registered memory that keeps the Python object it belongs to. Requests share it while they may read it.
class HostRegion {
 public:
  // With the GIL.
  static Result<std::shared_ptr<HostRegion>> Register(const HostGroup& group, const nanobind::object& owner,
                                                      uint64_t address, uint64_t length, Access access);

  const RegisteredMemory& memory() const { return memory_; }
  const HostGroup& group() const { return group_; }
  // Without the GIL; idempotent. Returns the owner of the memory, whose reference is the caller's then, or null.
  Result<PyObject*> Deregister();
  bool registered() const;

 private:
  HostRegion() = default;
  ~HostRegion() = default;
  // By whoever drops the last reference, which may be a worker: the callback thread deregisters.
  static void Retire(HostRegion* self);

  HostGroup group_;
  RegisteredMemory memory_;
  mutable std::mutex mutex_;
  PyObject* owner_ = nullptr;  // under mutex_; null once deregistered
  Task retire_;
};

// What Python holds. Deregisters when it goes and no request needs the memory any more.
class HostRegionHandle {
 public:
  explicit HostRegionHandle(std::shared_ptr<HostRegion> region) : region_(std::move(region)) {}
  ~HostRegionHandle();
  HostRegionHandle(const HostRegionHandle&) = delete;
  HostRegionHandle& operator=(const HostRegionHandle&) = delete;

  const std::shared_ptr<HostRegion>& region() const { return region_; }
  // kFailedPrecondition while requests may still read the memory. With the GIL, which it gives up meanwhile.
  Status Close();

 private:
  const std::shared_ptr<HostRegion> region_;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_HOST_REGION_H_
