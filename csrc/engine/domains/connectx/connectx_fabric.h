// The connectx domain over the double of libibverbs, or over the machine's own devices, as a fabric of the conformance
// suites.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_FABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_FABRIC_H_

#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/domains/connectx/connectx_domain.h"
#include "csrc/engine/domains/connectx/double/verbs_double.h"

namespace jax_fabric::conformance {

inline constexpr char kVerbsDouble[] = "csrc/engine/domains/connectx/double/libverbs_double.so";

// Of the double, which the domain opens as libibverbs.
template <typename Function>
Function VerbsDoubleFunction(const char* name) {
  void* handle = dlopen(kVerbsDouble, RTLD_NOW | RTLD_LOCAL);
  return handle == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(handle, name));
}

// Of devices that are opened from now on, in this process.
inline bool SetVerbsFaults(const verbs_double::Faults& faults) {
  const auto set = VerbsDoubleFunction<verbs_double::SetFaultsFunction>(verbs_double::kSetFaults);
  if (set != nullptr) set(&faults);
  return set != nullptr;
}

class ConnectXFabric final : public ConformanceFabric {
 public:
  explicit ConnectXFabric(ConnectXDomainOptions options) : options_(std::move(options)) {}

  static ConnectXDomainOptions DoubleOptions() {
    ConnectXDomainOptions options;
    options.library = kVerbsDouble;
    options.key = ConformanceKey();
    options.heartbeat_interval_us = 200'000;
    options.peer_timeout_us = 3'000'000;  // sanitizers on few cores
    options.connect_timeout_us = 2'000'000;
    return options;
  }

  Result<std::unique_ptr<Domain>> CreateDomain(const DomainShape& shape) override {
    ConnectXDomainOptions options = options_;
    if (shape.max_outstanding > 0) options.max_outstanding = shape.max_outstanding;
    if (shape.max_receives > 0) options.max_receives = shape.max_receives;
    return CreateConnectXDomain(options);
  }

  Result<FabricMemory> Allocate(uint64_t length) override {
    void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return MakeError(ErrorCode::kResourceExhausted, "mmap: {}", strerror(errno));
    return FabricMemory{memory, std::shared_ptr<void>(memory, [length](void* at) { munmap(at, length); })};
  }

 private:
  const ConnectXDomainOptions options_;
};

// "double": as good as a device is. "faults": datagrams get lost, come twice and late, completions are late, receivers
// are not ready, and nothing optional is there.
inline bool RegisterVerbsDoubleFabrics() {
  const auto make = [](const verbs_double::Faults& faults) -> std::unique_ptr<ConformanceFabric> {
    if (!SetVerbsFaults(faults)) return nullptr;
    return std::make_unique<ConnectXFabric>(ConnectXFabric::DoubleOptions());
  };
  return RegisterConformanceFabric("double", [make] { return make({}); }) &&
         RegisterConformanceFabric("faults", [make] {
           return make({.seed = 7,
                        .datagram_loss = 0.05,
                        .datagram_copies = 0.1,
                        .datagrams_late = 0.1,
                        .receiver_not_ready = 0.01,
                        .completion_delay_us = 500,
                        .refuse_relaxed_ordering = true,
                        .refuse_inline = true});
         });
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_FABRIC_H_
