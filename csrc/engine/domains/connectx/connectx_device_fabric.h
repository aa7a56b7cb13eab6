// The connectx domain over this machine's RDMA devices, as a fabric of the conformance suites. Nodes take the devices
// in turn: between the two soft-RoCE devices of scripts/soft_roce everything crosses a network.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DEVICE_FABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DEVICE_FABRIC_H_

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "csrc/engine/domains/connectx/connectx_fabric.h"

namespace jax_fabric::conformance {

class ConnectXDeviceFabric final : public ConformanceFabric {
 public:
  static ConnectXDomainOptions Options() {
    ConnectXDomainOptions options = ConnectXFabric::DoubleOptions();
    options.library = "";
    options.max_region_bytes = 256 << 20;  // all of it is pinned
    options.immediate_depth = 1024;
    options.peer_timeout_us = 20'000'000;  // emulated machines
    options.connect_timeout_us = 5'000'000;
    return options;
  }

  Result<std::unique_ptr<Domain>> CreateDomain(const DomainShape& shape) override {
    ConnectXDomainOptions options = Options();
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& each : std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
      names.push_back(each.path().filename());
    }
    std::sort(names.begin(), names.end());
    // Processes have one node each.
    if (!names.empty()) options.device = names[(made_++ + static_cast<size_t>(getpid())) % names.size()];
    if (shape.max_outstanding > 0) options.max_outstanding = shape.max_outstanding;
    if (shape.max_receives > 0) options.max_receives = shape.max_receives;
    return CreateConnectXDomain(options);
  }

  Result<FabricMemory> Allocate(uint64_t length) override { return memory_.Allocate(length); }

 private:
  size_t made_ = 0;
  ConnectXFabric memory_{Options()};
};

inline bool RegisterDeviceFabric() {
  return RegisterConformanceFabric("device", [] { return std::make_unique<ConnectXDeviceFabric>(); });
}

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DEVICE_FABRIC_H_
