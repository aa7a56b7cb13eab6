// The EFA domain: libfabric's reliable datagrams, with one-sided writes and immediates as remote completion data.
// Provider "efa" in production; "tcp;ofi_rxm" and "shm" run the same code on a machine without such a NIC. docs/nics.md
// says what has run where.
//
// One-sided writes know no connection, so this domain makes one: a handshake, heartbeats both ways, and a goodbye that
// a peer answers when nothing of its own is under way any more. A peer that is silent for peer_timeout_us is dead.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_DOMAIN_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_DOMAIN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric {

struct EfaDomainOptions {
  std::string provider = "efa";  // "tcp;ofi_rxm" or "shm" for development; nothing falls back
  std::string nic;               // libfabric's name of the domain, "rdmap0s6-rdm"; empty: the first one
  std::string
      source_address;   // where to listen, for providers that take one: "127.0.0.1"; empty: the provider's choice
  std::string library;  // of libfabric; empty: the system's
  uint32_t max_outstanding = 1024;  // writes and sends posted and not yet polled; lowered to the provider's depth
  uint32_t max_receives = 1024;
  uint32_t max_message_bytes = 8000;   // with its header below 8 KiB, which EFA sends in one packet
  uint32_t message_credits = 16;       // messages on the way to a peer that has not posted receives for them
  uint32_t completion_entries = 8192;  // of the completion queue, for what comes
  int64_t heartbeat_interval_us = 500'000;
  int64_t peer_timeout_us = 10'000'000;  // of silence
  int64_t connect_timeout_us = 30'000'000;
  bool device_memory = false;  // to register memory of CUDA devices
  // Of the fabric: only domains with the same one can connect. Null: those without.
  std::shared_ptr<const FabricKey> key = {};
};

Result<std::unique_ptr<Domain>> CreateEfaDomain(const EfaDomainOptions& options);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_DOMAIN_H_
