// What EfaDomain::address() says, and what AddPeer reads.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_ADDRESS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_ADDRESS_H_

#include <cstdint>
#include <string>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::efa {

struct EfaAddress {
  uint64_t incarnation = 0;      // random: of the domain
  std::string provider;          // both sides must have the same
  Bytes name;                    // libfabric's, opaque
  uint32_t message_credits = 0;  // how many messages may be on the way to it from one peer

  Bytes Seal() const;
  static Result<EfaAddress> Open(ByteView bytes);
};

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_ADDRESS_H_
