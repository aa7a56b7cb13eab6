// Groups of the host API over a simulated network on a virtual clock: what jax_fabric.testing.SimulatedFabric is made
// of. Nothing has a thread: whoever waits, steps everything. One thread only.
#ifndef JAX_FABRIC_FFI_HOST_HOST_SIMULATION_H_
#define JAX_FABRIC_FFI_HOST_HOST_SIMULATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domains/simulated/simulated_domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/testing/virtual_clock.h"
#include "csrc/ffi/host/host_engine.h"

namespace jax_fabric::ffi_layer {

class HostSimulation : public std::enable_shared_from_this<HostSimulation> {
 public:
  // All NICs are like `nic`.
  HostSimulation(uint64_t seed, const simulated::SimulatedDomainOptions& nic) : nic_(nic), network_(seed, clock_) {}

  // On an engine of its own, so that it can die alone. Groups are numbered from 0.
  Result<HostGroup> AddGroup(const std::string& name, int nics);

  // Every engine once; then time goes on to where something happens next, a millisecond at most.
  void Step();
  // The group's engine is closed and its NICs are dead: its peers hear of it as they would of a real one.
  Status Kill(size_t group);
  // What travels between two groups is lost until the link is restored.
  Status SetLink(size_t a, size_t b, bool works);

  Status CheckThread() const;
  const Clock& clock() const { return clock_; }
  int64_t now_ns() const { return clock_.NowNs(); }
  uint64_t retransmissions() const { return network_.retransmissions(); }
  uint64_t reordered_segments() const { return network_.reordered_segments(); }

 private:
  struct Member {
    std::weak_ptr<HostEngine> engine;
    std::vector<simulated::SimulatedDomain*> nics;  // the engine's
  };
  // An error when it is gone.
  Result<std::shared_ptr<HostEngine>> Find(size_t group) const;

  const std::thread::id thread_ = std::this_thread::get_id();
  const simulated::SimulatedDomainOptions nic_;
  jax_fabric::testing::VirtualClock clock_;
  simulated::SimulatedNetwork network_;
  std::vector<Member> members_;
  bool stepping_ = false;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_HOST_SIMULATION_H_
