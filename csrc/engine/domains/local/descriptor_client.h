// One request to a peer's DescriptorServer, as a state machine that never blocks.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_CLIENT_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/local/descriptor_protocol.h"
#include "csrc/engine/domains/local/local_address.h"

namespace jax_fabric::local {

struct ReceivedDescriptors {
  uint64_t memory_id = 0;
  std::vector<UniqueFd> descriptors;
};

class DescriptorClient {
 public:
  // `key`: of the fabric, which the server has to know, too.
  DescriptorClient(const LocalAddress& server, const DescriptorRequest& request, std::shared_ptr<const FabricKey> key,
                   Deadline deadline);

  // Nothing while the answer is on its way; ends by the deadline at the latest. Not to be called again after a result.
  std::optional<Result<ReceivedDescriptors>> Poll();
  // Polls and sleeps in between: for callers that may block.
  Result<ReceivedDescriptors> Wait();

  // Becomes readable with the answer; -1 while the peer's queue of connections is full.
  int fd() const { return socket_.get(); }

 private:
  // False: try again later.
  Result<bool> Connect();
  std::optional<Result<ReceivedDescriptors>> Receive();
  Status SendProof(ByteView challenge);
  tl::unexpected<Error> Failure(const Error& error) const;

  const std::string socket_name_;
  const uint32_t peer_pid_;
  DescriptorRequest request_;
  const std::shared_ptr<const FabricKey> key_;
  const Deadline deadline_;
  UniqueFd socket_;
  bool challenged_ = false;  // the server has shown that it knows the secret, and has our proof
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_CLIENT_H_
