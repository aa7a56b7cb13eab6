// The ConnectX domain: libibverbs' reliable connections over InfiniBand or RoCE. Any NIC that has them will do, nothing
// here is of one vendor. docs/connectx.md says what has run where.
//
// AddPeer makes a connection of its own, two queue pairs: writes and messages, each with a shared receive queue at the
// other end. What a peer writes comes over the peer's connection. So one side's refused write ends nothing of the other
// side's, and RemovePeer needs nobody's consent: it destroys the peer's queue pairs here. A connection that a refused
// write has ended is made again; what was posted is not posted again.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DOMAIN_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DOMAIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/nic/cuda_memory.h"

namespace jax_fabric {

struct ConnectXDomainOptions {
  std::string device;               // libibverbs' name, "mlx5_0"; empty: the first one with an active port
  int port = 0;                     // 1, 2, ...; 0: the first active one
  int gid_index = -1;               // -1: chosen (VerbsDevice)
  std::string library;              // of libibverbs; empty: the system's
  uint32_t max_outstanding = 1024;  // writes and sends posted and not yet polled; lowered to the device's depth
  uint32_t max_receives = 1024;
  uint32_t max_message_bytes = 8192;
  uint32_t message_credits = 16;       // messages on the way to a peer that has not posted receives for them
  uint32_t immediate_depth = 4096;     // immediates that may come before the domain is polled; beyond it, writers wait
  uint64_t max_region_bytes = 0;       // of one registration; 0: the device's limit
  uint32_t ack_timeout_exponent = 15;  // a packet is sent again after 4.096 us * 2^this without an acknowledgement
  uint32_t retry_count = 6;            // so often; 7 means for ever to some devices
  uint32_t service_level = 0;
  uint32_t traffic_class = 0;
  int64_t heartbeat_interval_us = 500'000;
  int64_t peer_timeout_us = 10'000'000;  // of silence
  int64_t connect_timeout_us = 30'000'000;
  // How memory of GPUs is handed to the NIC: nic::ExportCudaMemory, but in tests.
  std::function<Result<nic::DmaBuf>(const void* address, uint64_t length)> export_device_memory = nic::ExportCudaMemory;
  // Of the fabric: only domains with the same one can connect. Null: those without.
  std::shared_ptr<const FabricKey> key = {};
};

Result<std::unique_ptr<Domain>> CreateConnectXDomain(const ConnectXDomainOptions& options);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_CONNECTX_DOMAIN_H_
