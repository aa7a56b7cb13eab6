#include "csrc/ffi/host/host_region.h"

#include <utility>

#include "csrc/base/log.h"

namespace jax_fabric::ffi_layer {
namespace {

struct Deleter {
  void (*retire)(HostRegion*);
  void operator()(HostRegion* region) const { retire(region); }
};

}  // namespace

Result<std::shared_ptr<HostRegion>> HostRegion::Register(const HostGroup& group, const nanobind::object& owner,
                                                         uint64_t address, uint64_t length, Access access) {
  JF_RETURN_IF_ERROR(group.engine->CheckProcess());
  JF_ASSIGN_OR_RETURN(const RegisteredMemory memory,
                      group.group->RegisterMemory(reinterpret_cast<void*>(address), length, MemoryKind::kHost, access));
  std::shared_ptr<HostRegion> region(new HostRegion, Deleter{&HostRegion::Retire});
  region->group_ = group;
  region->memory_ = memory;
  region->owner_ = owner.inc_ref().ptr();
  return region;
}

bool HostRegion::registered() const {
  std::lock_guard lock(mutex_);
  return owner_ != nullptr;
}

Result<PyObject*> HostRegion::Deregister() {
  std::lock_guard lock(mutex_);
  if (owner_ != nullptr) JF_RETURN_IF_ERROR(group_.group->DeregisterMemory(memory_));
  return std::exchange(owner_, nullptr);
}

void HostRegion::Retire(HostRegion* self) {
  if (self->group_.engine != nullptr && self->group_.engine->InForkedChild()) return;
  if (!self->registered()) {
    delete self;
    return;
  }
  self->retire_.context = self;
  self->retire_.run = [](void* context) {
    auto* region = static_cast<HostRegion*>(context);
    // Memory that somebody may still write to is never freed: then the owner stays.
    const Result<PyObject*> owner = region->Deregister();
    if (owner.has_value()) {
      DropReference(*owner);
    } else {
      Log(LogLevel::kWarning, "a dropped memory region stays registered: {}", owner.error().message);
    }
    delete region;
  };
  self->group_.engine->engine().callback_executor().Submit(&self->retire_);
}

Status HostRegionHandle::Close() {
  JF_RETURN_IF_ERROR(region_->group().engine->CheckProcess());
  if (const long users = region_.use_count() - 1; users > 0) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "deregister memory: {} requests may still read the {} bytes at {}: wait for them first", users,
                     region_->memory().length, region_->memory().address);
  }
  Result<PyObject*> owner = nullptr;
  {
    const nanobind::gil_scoped_release released;
    owner = region_->Deregister();
  }
  if (!owner.has_value()) return tl::unexpected<Error>(std::move(owner).error());
  Py_XDECREF(*owner);
  return {};
}

HostRegionHandle::~HostRegionHandle() {
  // Here rather than on the callback thread, which user code may keep busy: memory should not pile up. What fails is
  // tried again, and told, when the region goes.
  [[maybe_unused]] const Status closed = Close();
}

}  // namespace jax_fabric::ffi_layer
