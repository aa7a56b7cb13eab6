// How a rank of an expert-parallel context finds the others: the memory that they write into, the introductions by
// which they learn of it, and the connections.
#ifndef JAX_FABRIC_MOE_PEER_CONNECTOR_H_
#define JAX_FABRIC_MOE_PEER_CONNECTOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "csrc/engine/domain_group.h"
#include "csrc/engine/domains/local/shared_memory.h"
#include "csrc/moe/introduction.h"
#include "csrc/moe/moe_config.h"
#include "csrc/moe/peer_table.h"

namespace jax_fabric::moe {

class PeerConnector {
 public:
  struct Options {
    int64_t memory_bytes = 0;   // that peers write into, through the engine or by stores
    int64_t staging_bytes = 0;  // of host memory, for messages on their way to peers that are not mapped
    // Of a GPU, memory_bytes long, in the place of host memory that would be allocated; outlives the connector. Or
    // null.
    void* device_memory = nullptr;
    uint64_t node = 0;            // this rank's, for Acquaintance::same_node; 0: it has none
    bool map_peers = true;        // stores into peers' memory, where loads and stores reach it
    uint64_t memory_options = 0;  // equal on all ranks, beside the configuration
  };

  // Both outlive it.
  PeerConnector(const MoeConfig& config, DomainGroup* group);
  ~PeerConnector();
  PeerConnector(const PeerConnector&) = delete;
  PeerConnector& operator=(const PeerConnector&) = delete;

  // Allocates the memory, unless it is given, and registers it.
  Status Prepare(const Options& options);
  // `device_memory`: what peers need to reach this rank's memory on its device; may be empty.
  Result<Bytes> Introduction(ByteView device_memory) const;
  // As Context::Connect. Staging memory of a GPU may come after it, and outlives the connector.
  Status Connect(std::span<const Bytes> introductions, Deadline deadline);
  Status RegisterDeviceStaging(void* memory, int64_t bytes);

  const PeerTable& table() const { return table_; }
  // Of each rank, after Connect: where it lives, and what it said of its device's memory.
  struct Acquaintance {
    bool same_process = false;
    bool same_node = false;
    Bytes device_memory;
  };
  const std::vector<Acquaintance>& acquaintances() const { return acquaintances_; }
  // In host memory; else empty.
  std::span<std::byte> memory() const { return {static_cast<std::byte*>(memory_.data()), memory_.size()}; }
  std::span<std::byte> staging() const { return {static_cast<std::byte*>(staging_.data()), staging_.size()}; }
  std::span<std::byte> notices() const { return {static_cast<std::byte*>(notices_.data()), notices_.size()}; }
  // Of all three.
  int64_t host_bytes() const { return static_cast<int64_t>(memory_.size() + staging_.size() + notices_.size()); }
  // How many peers are reached by stores; this rank counts.
  int32_t mapped_peers() const;
  // Nothing writes or reads the memory any more, given or own. False: a request that has been reported is still under
  // way, and whoever gave memory must keep it. Idempotent.
  bool Deregister();
  // Ranks whose peers are lost: dead, or closed. None before Connect.
  std::vector<int32_t> LostRanks() const;

 private:
  Status AddPeer(int32_t rank, ByteView bytes);
  // `given`, or `bytes` of new memory, which `own` keeps.
  Result<RegisteredMemory> Register(void* given, int64_t bytes, Access access, SharedMemory& own);
  uint64_t ConfigHash() const;

  const MoeConfig& config_;
  DomainGroup* const group_;
  Options options_;
  SharedMemory memory_;
  SharedMemory staging_;
  SharedMemory notices_;
  PeerTable table_;
  std::vector<Acquaintance> acquaintances_;
  bool connected_ = false;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_PEER_CONNECTOR_H_
