// The local domain: the machine's own memory. Ranks are threads of one process or processes of one machine; a write
// is one memcpy by the sender, an immediate one 8-byte store into the receiver's mailbox.
//
// Memory: peers in the same process reach any registered memory. Peers in other processes reach memory from
// AllocateShared by mapping it; other memory by process_vm_writev where the kernel allows that
// (kernel.yama.ptrace_scope, containers and other users may forbid it), else in pieces through slots of the mailbox,
// which the receiver copies on: two copies instead of one. Which of both is probed once a peer; peer_path() and the log
// say it.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_DOMAIN_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_DOMAIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/local/shared_memory.h"

namespace jax_fabric {

struct LocalDomainOptions {
  std::string name = "local";
  uint32_t max_outstanding = 4096;  // writes and sends posted and not yet polled
  uint32_t max_receives = 1024;
  uint32_t max_message_bytes = 16384;  // at most 64 MiB
  uint32_t max_peers = 1024;           // domains that send to this one at one time
  uint32_t max_regions = 4096;         // registered at one time, at most 2^20
  // Per sender, rounded up to powers of two. A sender that finds them full is answered kAgain.
  uint32_t immediate_slots = 4096;
  uint32_t message_slots = 256;
  // Writes up to this many bytes are copied within PostWrite; longer ones in such slices, one a Poll.
  uint64_t slice_bytes = 256 * 1024;
  // Writes of at least this many bytes bypass the cache; so do shorter ones that together are as long, each beginning
  // where the one before it ended. Measured over slices: 0.8 times memcpy's speed at 4 MiB, 1.2 times at 8 and 16, 1.3
  // to 1.7 from 64 MiB on (32 MiB of shared L3).
  uint64_t streaming_bytes = 8 * 1024 * 1024;
  // The same for paged writes, all pages together, which lie anywhere. Over random pages of 4 KiB: 1.1 times memcpy's
  // speed at 4 MiB, 3.3 times at 8 MiB, 1.7 times at 64 MiB.
  uint64_t streaming_pages_bytes = 4 * 1024 * 1024;
  int64_t connect_timeout_us = 5'000'000;
  // Of the fabric: only domains with the same one can connect, in both directions. Null: those without.
  std::shared_ptr<const FabricKey> key = {};
  // For tests and for machines where they misbehave.
  bool use_process_vm = true;
  bool use_pidfd = true;
  // Gets a line for what a user should see once (how a peer is reached, what it died of). Driving thread.
  std::function<void(const std::string&)> log = {};

  // Of shared memory at most, when every peer has filled its lane; only touched pages are taken.
  uint64_t memory_bytes() const;
};

Result<std::unique_ptr<Domain>> CreateLocalDomain(const LocalDomainOptions& options);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_DOMAIN_H_
