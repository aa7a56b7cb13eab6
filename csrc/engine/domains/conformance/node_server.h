// The driver of a node in a thread or process of its own: polls the domain and serves commands until kQuit or until
// the other end of the socket is closed.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_SERVER_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_SERVER_H_

#include <string>

#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/conformance/conformance_fabric.h"

namespace jax_fabric::conformance {

// Returns an exit code. The first answer on the socket is the Status of making the domain.
int RunNodeServer(UniqueFd socket, const std::string& fabric, const DomainShape& shape);

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_SERVER_H_
