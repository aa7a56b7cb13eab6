// What LocalDomain::address() says, and what AddPeer reads.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_ADDRESS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_ADDRESS_H_

#include <cstdint>
#include <string>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/local/process_identity.h"

namespace jax_fabric::local {

struct LocalAddress {
  ProcessIdentity process;
  uint64_t process_id = 0;   // random: of the ProcessHub, so that a fork is not taken for its parent
  uint64_t incarnation = 0;  // random: of the domain
  std::string socket_name;   // abstract Unix socket of the process, without the leading zero byte

  Bytes Seal() const;
  static Result<LocalAddress> Open(ByteView bytes);
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_ADDRESS_H_
