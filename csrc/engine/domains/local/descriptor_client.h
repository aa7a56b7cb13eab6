// One request to a peer's DescriptorServer, as a state machine that never blocks.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_CLIENT_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_CLIENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/local/descriptor_protocol.h"

namespace jax_fabric::local {

struct ReceivedDescriptors {
  uint64_t memory_id = 0;
  std::vector<UniqueFd> descriptors;
};

class DescriptorClient {
 public:
  DescriptorClient(std::string socket_name, uint32_t peer_pid, const DescriptorRequest& request, Deadline deadline);

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

  const std::string socket_name_;
  const uint32_t peer_pid_;
  const DescriptorRequest request_;
  const Deadline deadline_;
  UniqueFd socket_;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_CLIENT_H_
