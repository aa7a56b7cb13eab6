// The local domain as a fabric of the conformance suites, by each way in which it reaches memory.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_FABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_FABRIC_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/domains/local/local_domain.h"

namespace jax_fabric::conformance {

enum class LocalMemory { kShared, kProcessVm, kBounced };

class LocalFabric final : public ConformanceFabric {
 public:
  explicit LocalFabric(LocalMemory memory) : memory_(memory) {}

  Result<std::unique_ptr<Domain>> CreateDomain(const DomainShape& shape) override {
    LocalDomainOptions options;
    if (shape.max_outstanding > 0) {
      options.max_outstanding = options.immediate_slots = options.message_slots = shape.max_outstanding;
    }
    options.key = ConformanceKey();
    options.use_process_vm = memory_ != LocalMemory::kBounced;
    if (shape.max_receives > 0) options.max_receives = shape.max_receives;
    return CreateLocalDomain(options);
  }

  Result<FabricMemory> Allocate(uint64_t length) override {
    if (memory_ != LocalMemory::kShared) return AllocatePrivate(length);
    JF_ASSIGN_OR_RETURN(SharedMemory memory, AllocateShared(length));
    auto owner = std::make_shared<SharedMemory>(std::move(memory));
    return FabricMemory{owner->data(), owner};
  }

 private:
  static Result<FabricMemory> AllocatePrivate(uint64_t length) {
    void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      return MakeError(ErrorCode::kResourceExhausted, "mmap of {} bytes failed: {}", length, strerror(errno));
    }
    return FabricMemory{address, std::shared_ptr<void>(address, [length](void* pages) { munmap(pages, length); })};
  }

  const LocalMemory memory_;
};

// As "local", "local_process_vm" and "local_bounced": the latter two only make a difference between processes.
inline bool RegisterLocalFabrics() {
  const auto add = [](const char* name, LocalMemory memory) {
    return RegisterConformanceFabric(name, [memory] { return std::make_unique<LocalFabric>(memory); });
  };
  return add("local", LocalMemory::kShared) && add("local_process_vm", LocalMemory::kProcessVm) &&
         add("local_bounced", LocalMemory::kBounced);
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_FABRIC_H_
