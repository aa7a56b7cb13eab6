// The thread that hands out this process's mailboxes and shared memory to its peers. One connection is one request;
// it is closed after the reply or when request or proof do not come in time. Nothing a client does can block another.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_SERVER_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/local/descriptor_protocol.h"

namespace jax_fabric::local {

struct Endpoint;

class DescriptorServer {
 public:
  using FindEndpoint = std::function<std::shared_ptr<Endpoint>(uint64_t incarnation)>;

  // `find` is called on the server's thread.
  static Result<std::shared_ptr<DescriptorServer>> Start(FindEndpoint find);
  // Stops the thread; bounded, it never waits for a client.
  ~DescriptorServer();

  const std::string& socket_name() const { return socket_name_; }

 private:
  struct Client {
    UniqueFd socket;
    Deadline deadline;
    // Once challenged.
    std::shared_ptr<Endpoint> endpoint = {};
    DescriptorRequest request = {};
    DescriptorChallenge challenge = {};
  };

  DescriptorServer() = default;
  void Run();
  void Accept();
  // Returns whether more is to come from the client.
  bool Serve(Client& client) const;
  bool Challenge(Client& client, const DescriptorRequest& request) const;
  void Answer(const Client& client) const;

  FindEndpoint find_;
  std::string socket_name_;
  UniqueFd listener_;
  UniqueFd stop_;  // eventfd
  std::vector<Client> clients_;
  std::thread thread_;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_SERVER_H_
