// RequestPlanner: turns what users ask for into operations: looks up peers and memory, checks every bound.
#ifndef JAX_FABRIC_ENGINE_REQUEST_PLANNER_H_
#define JAX_FABRIC_ENGINE_REQUEST_PLANNER_H_

#include <cstdint>
#include <string_view>

#include "csrc/base/status.h"
#include "csrc/engine/paged_operation.h"
#include "csrc/engine/peer_table.h"
#include "csrc/engine/registration_cache.h"
#include "csrc/engine/requests.h"
#include "csrc/engine/scatter.h"
#include "csrc/engine/sharded_operation.h"

namespace jax_fabric {

// Any thread; takes no lock and, where all is well, allocates nothing.
class RequestPlanner {
 public:
  RequestPlanner(const PeerTable& peers, const RegistrationCache& registrations, uint32_t nic_count)
      : peers_(peers), registrations_(registrations), nic_count_(nic_count) {}

  Result<ShardedOperation::Write> Plan(const SingleWrite& write) const;
  // `index` decides over which NIC it goes.
  Result<ShardedOperation::Write> Plan(const ScatterEntry& entry, size_t index) const;
  Result<ShardedOperation::Write> Plan(const BarrierTarget& target, size_t index) const;
  Result<PagedOperation::Plan> Plan(const PagedWrites& write) const;

  Result<Peer*> FindPeer(PeerHandle handle, std::string_view what) const;

 private:
  Status CheckTarget(const Peer& peer, const RemoteMemory* target, uint64_t offset, uint64_t length,
                     std::string_view what) const;
  Result<const RegistrationCache::Entry*> CheckSource(const RegisteredMemory& memory, uint64_t offset, uint64_t length,
                                                      std::string_view what) const;

  const PeerTable& peers_;
  const RegistrationCache& registrations_;
  const uint32_t nic_count_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_REQUEST_PLANNER_H_
